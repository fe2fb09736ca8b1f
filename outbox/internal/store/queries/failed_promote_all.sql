-- What failed_promote.sql does for all keys of a shard: for a relay that does not know what ended before it took the shard.
update {schema}.outbox_failed f
set state = 'retrying', retry_at = now()
where f.shard = $1::smallint and f.state = 'blocked'
and not exists (
    select from {schema}.outbox_failed e
    where e.shard = f.shard and e.hash = f.hash and e.key = f.key and e.id < f.id and e.state <> 'discarded')
