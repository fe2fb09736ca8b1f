-- The relays that run, by host and process. Reads all of outbox_relay, which is small. No locks.
select name from {schema}.outbox_relay where expires_at > now()
