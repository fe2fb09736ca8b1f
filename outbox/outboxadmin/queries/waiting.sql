-- What each shard holds of each topic, among its first $1 rows. Events of the topics $2, and those that wait for one of them, are held
-- up: those behind the first one of such a topic in their key. Ranges of the index outbox_shard_seq; no locks.
select s.shard, e.topic, count(*), min(e.created_at), min(e.created_at) filter (where not e.held_up)
from {schema}.outbox_shard s
cross join lateral (
    with pending as materialized (
        select seq, topic, key, created_at from {schema}.outbox where shard = s.shard order by seq limit $1
    ), first as (
        select key, min(seq) as seq from pending where topic = any($2::text[]) and key <> '' group by key
    )
    select p.topic, p.created_at, p.topic = any($2) or f.key is not null as held_up
    from pending p left join first f on f.key = p.key and f.seq < p.seq
) e
group by s.shard, e.topic
