-- The number of full keys of each consumer, the five that have been full for longest, and the number of rows read, at most $1. By
-- the index on full keys. No locks.
with held as (select consumer, key, full_since from {schema}.claim_key where full_since is not null order by full_since limit $1::int)
select c.name, count(*), (array_agg(h.key order by h.full_since))[1:5], (select count(*) from held)
from held h join {schema}.consumer c on c.id = h.consumer group by c.name
