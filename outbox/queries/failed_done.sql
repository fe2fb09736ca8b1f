-- Deletes events of the side table that were published. Locks those rows.
delete from {schema}.outbox_failed where shard = $1::smallint and id = any($2::bigint[])
