-- The group of errors of each consumer's latest failure among unsettled events. Reads claim_failed_count, which has about one row
-- for each consumer, state and group. Reads the text of the group from one of its events, by the index on groups and states, as in
-- flow_waiting. No locks.
with counted as (
    select n.consumer, n.error_group, n.state, max(n.last_at) as last from {schema}.claim_failed_count n
    where n.state in ('nacked', 'retrying', 'dead') group by 1, 2, 3 having sum(n.events) > 0
), latest as (
    select distinct on (consumer) consumer, error_group, state, last from counted order by consumer, last desc, error_group
)
select c.name, l.error_group, l.last, {schema}.claim_failed_alike(f.reason, f.error)
from latest l join {schema}.consumer c on c.id = l.consumer
cross join lateral (select f.reason, f.error from {schema}.claim_failed f where f.error_group = l.error_group and f.state between l.state and l.state order by f.state, f.id limit 1) f
