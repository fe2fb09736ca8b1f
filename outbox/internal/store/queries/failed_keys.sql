-- The keys that have failed events, by the index outbox_failed_key.
select distinct shard, key from {schema}.outbox_failed
where shard = any($1::smallint[]) and state <> 'discarded' and key <> ''
