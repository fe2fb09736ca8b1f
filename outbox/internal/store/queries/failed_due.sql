-- The shards in which something of the side table is to be done, by the index outbox_failed_due.
select distinct shard from {schema}.outbox_failed
where shard = any($1::smallint[]) and (state = 'retrying' or command is not null) and (retry_at <= now() or command is not null)
