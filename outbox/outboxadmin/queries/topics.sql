-- Failed events by topic, among $1 of each state, by the index on states; no locks.
select f.topic, count(*)
from unnest(array['retrying', 'blocked', 'dead']) as t (state)
cross join lateral (
    select f.topic from {schema}.outbox_failed f where f.state <= t.state and (f.state, f.id) >= (t.state, 0::bigint) order by f.state, f.id limit $1
) f
group by f.topic
