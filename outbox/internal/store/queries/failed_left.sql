-- Which of the keys $3, whose hashes are $2, still have failed events. Probes the index outbox_failed_key once for each key.
select k.key
from unnest($2::bigint[], $3::text[]) as k (hash, key)
cross join lateral (
    select from {schema}.outbox_failed e
    where e.shard = $1::smallint and e.hash = k.hash and e.key = k.key and e.state <> 'discarded'
    limit 1
) as there
