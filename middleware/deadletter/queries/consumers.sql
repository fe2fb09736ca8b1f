-- The consumers, which are few. That without a name is none: it keeps a floor.
select name from {schema}.consumer where name <> '' order by name
