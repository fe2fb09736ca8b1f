-- The relay has survived sending an event that it had recorded. Locks the shard's row.
update {schema}.outbox_shard set suspect = null, suspect_by = null, suspect_deaths = '{}'
where shard = $1::smallint and relay_id = $2::uuid and suspect = $3::text
