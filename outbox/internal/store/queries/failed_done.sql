-- Deletes failed events that were published. Locks those rows. It does not compare the shard, because the number of shards may have
-- changed since they were read.
delete from {schema}.outbox_failed where id = any($1::bigint[])
