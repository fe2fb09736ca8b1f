-- What each shard holds, counted up to $1 rows each, and who holds its lease, from what a role that publishes may read. Events of
-- the topics $2, and those that wait for one of them, are held up. Ranges of the index outbox_shard_seq; no locks.
select s.shard, p.pending, p.oldest, p.moving, coalesce(s.relay_id::text, ''), case when s.relay_id is not null and isfinite(s.expires_at) then s.expires_at end,
       s.relay_id is not null and s.expires_at > now(), cardinality(s.deaths), coalesce(s.suspect, ''), cardinality(s.suspect_deaths), clock_timestamp()
from {schema}.outbox_shard s
cross join lateral (
    select count(*) as pending, min(created_at) as oldest, min(created_at) filter (where not held_up) as moving
    from (
        select created_at, topic = any($2::text[]) or key <> '' and bool_or(topic = any($2::text[])) over (partition by key order by seq) as held_up
        from (select seq, topic, key, created_at from {schema}.outbox where shard = s.shard order by seq limit $1) o
    ) e
) p
order by s.shard
