-- The relay has survived sending an event that it had noted. Locks the shard's row.
update {schema}.outbox_shard
set noted = null, suspect = nullif(suspect, $3::text), suspect_deaths = case when suspect = $3::text then '{}' else suspect_deaths end
where shard = $1::smallint and relay_id = $2::uuid and noted = $3::text
