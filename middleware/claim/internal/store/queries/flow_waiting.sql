-- The event of each consumer that failed first and waits, by state. Of each state one row by the index on consumers and states. No locks.
select c.name, s.state, f.first_at
from {schema}.consumer c cross join unnest(array['nacked', 'retrying', 'blocked', 'dead']) s (state)
cross join lateral (select f.first_at from {schema}.claim_failed f where f.consumer = c.id and f.state = s.state order by f.id limit 1) f
where c.name <> ''
