-- What each shard holds, counted up to $1 rows each, and who holds its lease, from what a role that publishes may read. Ranges of
-- the index outbox_shard_seq; no locks.
select s.shard, p.pending, p.oldest, coalesce(s.relay_id::text, ''), case when s.relay_id is not null and isfinite(s.expires_at) then s.expires_at end,
       s.relay_id is not null and s.expires_at > now(), cardinality(s.deaths), coalesce(s.suspect, ''), cardinality(s.suspect_deaths), clock_timestamp()
from {schema}.outbox_shard s
cross join lateral (
    select count(*) as pending, min(o.created_at) as oldest
    from (select created_at from {schema}.outbox where shard = s.shard order by seq limit $1) o
) p
order by s.shard
