-- Records that this relay is about to send an event alone, so that its successor knows if it ends. If the event that it noted before is
-- the suspect, the relay has survived that one. Locks the shard's row.
update {schema}.outbox_shard
set noted = $3::text,
    suspect = case when noted = suspect and noted <> $3::text then null else suspect end,
    suspect_deaths = case when noted = suspect and noted <> $3::text then '{}' else suspect_deaths end
where shard = $1::smallint and relay_id = $2::uuid
