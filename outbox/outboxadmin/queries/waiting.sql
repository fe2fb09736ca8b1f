-- What each shard holds of each topic, among its first $1 rows. Events of the topics $2, and those that wait for one of them, are held
-- up; where there is no such topic nothing is sorted by keys. Ranges of the index outbox_shard_seq; no locks.
select s.shard, e.topic, count(*), min(e.created_at), min(e.created_at) filter (where not e.held_up)
from {schema}.outbox_shard s
cross join lateral (
    (select topic, created_at, false as held_up from {schema}.outbox
     where shard = s.shard and cardinality($2::text[]) = 0 order by seq limit $1)
    union all
    select topic, created_at, topic = any($2) or key <> '' and bool_or(topic = any($2)) over (partition by key order by seq)
    from (select seq, topic, key, created_at from {schema}.outbox
          where shard = s.shard and cardinality($2) > 0 order by seq limit $1) o
) e
group by s.shard, e.topic
