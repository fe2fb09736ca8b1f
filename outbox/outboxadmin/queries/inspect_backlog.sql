-- What each shard holds, counted up to $1 rows each, and who holds its lease, from what a role that publishes may read. Events of
-- the topics $2, and those that wait for one of them, are held up. Ranges of the index outbox_shard_seq, in outbox_waiting; no locks.
select s.shard, p.pending, p.oldest, p.moving, coalesce(s.relay_id::text, ''), case when s.relay_id is not null and isfinite(s.expires_at) then s.expires_at end,
       s.relay_id is not null and s.expires_at > now(), cardinality(s.deaths), coalesce(s.suspect, ''), cardinality(s.suspect_deaths), clock_timestamp()
from {schema}.outbox_shard s
cross join lateral {schema}.outbox_waiting(s.shard, $1, $2) p
order by s.shard
