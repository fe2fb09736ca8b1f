-- The number of records without a day, up to 100,000. Reads as many rows of processed_hashed.
select count(*) from (select from {schema}.processed_hashed limit 100000) as first
