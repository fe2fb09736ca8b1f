-- What is unpublished by topic, among the first $1 rows of each shard, by the index outbox_shard_seq, and $1 of each state of the
-- failed ones, by theirs; no locks.
select e.topic, count(*) filter (where not failed), min(e.created_at) filter (where not failed), count(*) filter (where failed)
from (
    select o.topic, o.created_at, false as failed
    from {schema}.outbox_shard s
    cross join lateral (select topic, created_at from {schema}.outbox where shard = s.shard order by seq limit $1) o
    union all
    select f.topic, f.created_at, true
    from unnest(array['retrying', 'blocked', 'dead']) as t (state)
    cross join lateral (select topic, created_at from {schema}.outbox_failed where state = t.state limit $1) f
) e
group by e.topic
order by 2 desc, 4 desc, 1
