-- How many records have no day, up to 100,000. Reads so much of processed_hashed.
select count(*) from (select from {schema}.processed_hashed limit 100000) as first
