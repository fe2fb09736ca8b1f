-- A consumer's number, by the unique index on its name.
select id from {schema}.consumer where name = $1
