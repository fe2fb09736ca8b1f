-- Failed events by topic, among $1 of each state, by the index on states; no locks.
select f.topic, count(*)
from unnest(array['retrying', 'blocked', 'dead']) as t (state)
cross join lateral (select topic from {schema}.outbox_failed where state = t.state limit $1) f
group by f.topic
