-- Gives leases of this relay back. Locks their rows.
update {schema}.outbox_shard set relay_id = null, expires_at = '-infinity'
where relay_id = $1::uuid and shard = any($2::smallint[])
