-- Keys for which no more events are kept, those that have been full for longest first, at most $1. By the index on full keys. No
-- locks.
select c.name, k.key, k.waiting, k.full_since
from {schema}.claim_key k join {schema}.consumer c on c.id = k.consumer
where k.full_since is not null
order by k.full_since, 1, 2 limit $1::int
