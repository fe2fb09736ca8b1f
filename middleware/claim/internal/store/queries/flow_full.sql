-- How many of the keys of each consumer that are held up are full, and how many were read: at most $1 rows of claim_key, which has a row for
-- each key that is held up. No locks.
with held as (select consumer, full_since from {schema}.claim_key limit $1::int)
select c.name, count(h.full_since), (select count(*) from held)
from held h join {schema}.consumer c on c.id = h.consumer group by c.name
