-- The number of failed events by consumer and state, and for how many seconds the oldest due event has been due. Reads
-- claim_failed_count, which has about one row for each consumer, state and group of errors, and the first entries of the index on
-- due_at. No locks.
with counted as (
    select consumer, state, sum(events)::bigint as events from {schema}.claim_failed_count group by 1, 2 having sum(events) > 0
)
select c.name, k.state, k.events, case k.state when 'retrying' then (
    select extract(epoch from now() - f.due_at)::float8 from {schema}.claim_failed f
    where f.consumer = k.consumer and f.state = 'retrying' and f.due_at < now() order by f.due_at limit 1) end
from counted k join {schema}.consumer c on c.id = k.consumer
