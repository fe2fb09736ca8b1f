-- Deletes failed events that were published. Locks those rows. Not by shard: their number may
-- have changed since they were read.
delete from {schema}.outbox_failed where id = any($1::bigint[])
