-- Keys that are held up by nothing that will ever be handled: an operator took away what was in front. Reads the keys'
-- rows of a consumer, and for each the index on keys; locks nothing.
select k.consumer, k.key
from {schema}.claim_key k left join lateral (
    select f.state from {schema}.claim_failed f
    where f.consumer = k.consumer and f.key = k.key and f.key <> '' and f.state <> 'nacked' order by f.id limit 1) first on true
where k.consumer = (select id from {schema}.consumer where name = $1) and (first.state is null or first.state = 'blocked')
limit 1000
