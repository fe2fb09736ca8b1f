-- The shards in which failed events are due, or have a command, by the index outbox_failed_due.
select distinct shard from {schema}.outbox_failed
where shard = any($1::smallint[]) and (state = 'retrying' or command is not null) and (retry_at <= now() or command is not null)
