-- Makes the first event of each key due if the event that blocked it is gone. The keys are $3, their hashes $2. Probes the index
-- outbox_failed_key once for each key. Locks the rows that it changes.
update {schema}.outbox_failed
set state = 'retrying', retry_at = now()
where state = 'blocked' and id = any (array(
    select first.id
    from unnest($2::bigint[], $3::text[]) as k (hash, key)
    cross join lateral (
        select e.id, e.state from {schema}.outbox_failed e
        where e.shard = $1::smallint and e.hash = k.hash and e.key = k.key and e.state <> 'discarded'
        order by e.id limit 1
    ) as first
    where first.state = 'blocked'))
