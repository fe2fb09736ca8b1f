-- The first failed event of each consumer that still waits, by state. Reads one row for each state, by the index on consumers and
-- states. A range of one state, and an order that starts with the state, keep the planner from the primary key, which would reach
-- that row after many others. No locks.
select c.name, s.state, f.first_at
from {schema}.consumer c cross join unnest(array['nacked', 'retrying', 'blocked']) s (state)
cross join lateral (select f.first_at from {schema}.claim_failed f where f.consumer = c.id and f.state between s.state and s.state order by f.state, f.id limit 1) f
where c.name <> ''
