-- This relay has not ended: shards that counted it as ended, because it renewed late, no longer do. Locks their rows and skips those that
-- another relay renews; the next renewal finds them.
update {schema}.outbox_shard
set deaths = array_remove(deaths, $1::uuid), suspect_deaths = array_remove(suspect_deaths, $1::uuid)
where shard in (
    select shard from {schema}.outbox_shard
    where $1::uuid = any(deaths) or $1::uuid = any(suspect_deaths)
    for update skip locked)
