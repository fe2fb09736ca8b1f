-- The events that are due and wait for no other of their key, oldest first, by the indexes outbox_failed_due and
-- outbox_failed_key.
select f.id, f.hash, f.key from {schema}.outbox_failed f
where f.shard = $1::smallint and f.state = 'retrying' and f.retry_at <= now()
and (f.key = '' or not exists (select from {schema}.outbox_failed e where e.shard = f.shard and e.hash = f.hash and e.key = f.key and e.id < f.id and e.state <> 'discarded'))
order by f.id
limit $2::int
