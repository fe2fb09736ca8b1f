-- The shards, and who relays them; no locks.
select s.shard, coalesce(r.name, ''), coalesce(s.relay_id::text, ''),
       case when s.relay_id is not null and isfinite(s.expires_at) then s.expires_at end,
       s.relay_id is not null and s.expires_at > now(), cardinality(s.deaths), coalesce(s.suspect, ''), cardinality(s.suspect_deaths)
from {schema}.outbox_shard s
left join {schema}.outbox_relay r on r.relay_id = s.relay_id
order by s.shard
