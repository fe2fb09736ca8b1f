-- Blocked keys without an event that will be handled, because an operator removed the first one. Reads a consumer's rows of
-- claim_key, and the index on keys for each. No locks.
select k.consumer, k.key
from {schema}.claim_key k left join lateral (
    select f.state from {schema}.claim_failed f
    where f.consumer = k.consumer and f.key = k.key and f.key <> '' and f.state <> 'nacked' order by f.id limit 1) first on true
where k.consumer = (select id from {schema}.consumer where name = $1) and (first.state is null or first.state = 'blocked')
limit 1000
