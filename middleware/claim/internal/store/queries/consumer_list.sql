-- The consumers, which are few, and their floors. The row without a name is not a consumer: see consumer_floor.
select name, floor from {schema}.consumer where name <> '' order by name
