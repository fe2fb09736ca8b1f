-- The next pending events of the topic $1 in the shard $2: at most $5 above the number $3, written before $4. The index
-- outbox_shard_seq; no locks.
select seq, event_id, key from {schema}.outbox
where shard = $2::smallint and seq > $3::bigint and topic = $1::text and created_at < $4::timestamptz
order by seq
limit $5::int
