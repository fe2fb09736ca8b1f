-- Makes the first event of each key due that was blocked by one that is gone: of the key $3, whose hash is $2, by the index
-- outbox_failed_key; of all keys where both are null. Locks the rows that it changes.
update {schema}.outbox_failed f
set state = 'retrying', retry_at = now()
where f.shard = $1::smallint and f.state = 'blocked' and ($2::bigint is null or f.hash = $2::bigint and f.key = $3::text)
and not exists (
    select from {schema}.outbox_failed e
    where e.shard = f.shard and e.hash = f.hash and e.key = f.key and e.id < f.id and e.state <> 'discarded')
