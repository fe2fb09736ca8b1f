-- What each shard holds, counted up to $1 rows each, and who relays it. Ranges of the index outbox_shard_seq; no locks.
select s.shard, p.pending, p.oldest, coalesce(r.name, ''), coalesce(s.relay_id::text, ''),
       case when s.relay_id is not null and isfinite(s.expires_at) then s.expires_at end,
       s.relay_id is not null and s.expires_at > now(), cardinality(s.deaths), coalesce(s.suspect, ''), cardinality(s.suspect_deaths)
from {schema}.outbox_shard s
cross join lateral (
    select count(*) as pending, min(o.created_at) as oldest
    from (select created_at from {schema}.outbox where shard = s.shard order by seq limit $1) o
) p
left join {schema}.outbox_relay r on r.relay_id = s.relay_id
order by s.shard
