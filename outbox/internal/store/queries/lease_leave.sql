-- Gives back all leases of this relay, including those that its last renewal took. Locks their rows.
update {schema}.outbox_shard set relay_id = null, expires_at = '-infinity' where relay_id = $1::uuid
