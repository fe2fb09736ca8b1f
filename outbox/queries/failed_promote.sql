-- Makes the first event of each key ($2; null: of all) due that waited behind one that is gone. Locks the rows that it
-- changes.
update {schema}.outbox_failed f
set state = 'retrying', retry_at = now()
where f.shard = $1::smallint and f.state = 'blocked' and ($2::text[] is null or f.key = any($2::text[]))
and not exists (select from {schema}.outbox_failed e where e.shard = f.shard and e.key = f.key and e.id < f.id and e.state <> 'discarded')
