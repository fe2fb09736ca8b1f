-- Gives back leases of this relay, each by shard and term, because a later lease of the same shard must stay. Locks their rows.
update {schema}.outbox_shard set relay_id = null, expires_at = '-infinity'
where relay_id = $1::uuid and (shard, term) in (select * from unnest($2::smallint[], $3::bigint[]))
