-- Gives leases of this relay back, each of its shard and term: a later lease of the same shard is another one. Locks their rows.
update {schema}.outbox_shard set relay_id = null, expires_at = '-infinity'
where relay_id = $1::uuid and (shard, term) in (select * from unnest($2::smallint[], $3::bigint[]))
