-- Makes the first event of each key due that was blocked by one that is gone: of the keys $3, whose hashes are $2, by the
-- index outbox_failed_key. Locks the rows that it changes.
update {schema}.outbox_failed f
set state = 'retrying', retry_at = now()
where f.shard = $1::smallint and f.state = 'blocked' and f.hash = any($2::bigint[]) and f.key = any($3::text[])
and not exists (
    select from {schema}.outbox_failed e
    where e.shard = f.shard and e.hash = f.hash and e.key = f.key and e.id < f.id and e.state <> 'discarded')
