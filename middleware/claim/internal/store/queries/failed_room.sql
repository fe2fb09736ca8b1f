-- Makes room for one more blocked event of a key, whose row is locked, by its primary key. waiting is an upper bound of the number
-- of blocked events. If it is unknown or has reached $3, the events are counted, by the index on keys. Returns whether there is no
-- room, and whether that is so since this statement.
with counted as (
    select case when waiting < $3::int then waiting else (select count(*)::int from (
        select from {schema}.claim_failed f where f.consumer = $1::smallint and f.key = $2 and f.key <> '' and f.state = 'blocked' limit $3) f) end as events
    from {schema}.claim_key where consumer = $1 and key = $2
)
update {schema}.claim_key k
set waiting = least(c.events + 1, $3), full_since = case when c.events >= $3 then coalesce(k.full_since, now()) end
from counted c where k.consumer = $1 and k.key = $2
returning k.full_since is not null, coalesce(k.full_since = now(), false)
