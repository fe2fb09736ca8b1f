-- The relays that are there, and those that ended without saying so a moment ago; no locks.
select r.relay_id::text, r.name, r.expires_at, r.expires_at > now(),
       (select count(*) from {schema}.outbox_shard s where s.relay_id = r.relay_id and s.expires_at > now())
from {schema}.outbox_relay r
order by r.name, r.relay_id
