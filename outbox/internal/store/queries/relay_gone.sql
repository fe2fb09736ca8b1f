-- Removes this relay, and relays that expired long ago. This relay ends normally, so it is not counted as a death. Locks the rows, and
-- skips those that another relay is removing.
with well as (
    update {schema}.outbox_shard
    set deaths = array_remove(deaths, $1::uuid), suspect_deaths = array_remove(suspect_deaths, $1::uuid)
    where $1::uuid = any(deaths || suspect_deaths)
)
delete from {schema}.outbox_relay where relay_id in (
    select relay_id from {schema}.outbox_relay
    where relay_id = $1::uuid or expires_at < now() - interval '1 minute'
    for update skip locked)
