-- Records that this relay is about to send an event alone, so that its successor knows if it ends. Locks the shard's row.
update {schema}.outbox_shard
set suspect = $3::text, suspect_by = $2::uuid, suspect_deaths = case when suspect = $3::text then suspect_deaths else '{}' end
where shard = $1::smallint and relay_id = $2::uuid
