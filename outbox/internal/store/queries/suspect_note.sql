-- Notes that an event is about to be sent alone, before it is: should the relay die of it, its successor knows. Locks the
-- shard's row.
update {schema}.outbox_shard
set suspect = $3::text, attempts = case when suspect = $3::text then attempts else 0 end
where shard = $1::smallint and relay_id = $2::uuid
