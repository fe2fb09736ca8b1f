-- The consumers, which are few, and what binds them.
select name, floor from {schema}.consumer order by name
