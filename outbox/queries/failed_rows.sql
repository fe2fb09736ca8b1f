-- A due event ($3) and those of its key that wait behind it, in order, by the index outbox_failed_key.
select id, state, attempts, seq, event_id, topic, key, headers, payload, created_at from {schema}.outbox_failed
where shard = $1::smallint and key = $2::text and id >= $3::bigint and state <> 'dead' and (key <> '' or id = $3::bigint)
order by id
limit $4::int
