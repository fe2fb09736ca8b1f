-- What is unpublished by topic, among the first $1 rows of each shard and of the failed ones; no locks.
select e.topic, count(*) filter (where not failed), min(e.created_at) filter (where not failed), count(*) filter (where failed)
from (
    select o.topic, o.created_at, false as failed
    from {schema}.outbox_shard s
    cross join lateral (select topic, created_at from {schema}.outbox where shard = s.shard order by seq limit $1) o
    union all
    (select topic, created_at, true from {schema}.outbox_failed where state <> 'discarded' limit $1)
) e
group by e.topic
order by 2 desc, 4 desc, 1
