-- The consumers, which are few, and what binds them. That without a name is none: see consumer_floor.
select name, floor from {schema}.consumer where name <> '' order by name
