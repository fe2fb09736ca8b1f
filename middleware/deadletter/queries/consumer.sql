-- The number of a consumer, by the index on names.
select id from {schema}.consumer where name = $1
