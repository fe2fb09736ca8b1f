-- Forgets this relay and those that expired long ago; locks their rows, skipping what others forget at the same time.
delete from {schema}.outbox_relay where relay_id in (
    select relay_id from {schema}.outbox_relay
    where relay_id = $1::uuid or expires_at < now() - interval '1 minute'
    for update skip locked)
