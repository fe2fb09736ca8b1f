-- Gives all leases of this relay back, also those that a last renewal has taken. Locks their rows.
update {schema}.outbox_shard set relay_id = null, expires_at = '-infinity' where relay_id = $1::uuid
