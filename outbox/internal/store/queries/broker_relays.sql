-- The running relays, by the names of their processes; a relay is of no service. Reads all of outbox_relay, which is small. No locks.
select name, '' from {schema}.outbox_relay where expires_at > now()
