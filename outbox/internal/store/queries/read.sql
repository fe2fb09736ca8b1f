-- What is new in a shard: rows above a number, in order, by the index outbox_shard_seq, without locks. Only the holder of
-- the shard's lease reads it. The lengths come from the row, also of payloads that are stored elsewhere.
select ctid, xmin, seq, event_id, topic, key, headers, payload, created_at
from {schema}.outbox
where shard = $1::smallint and seq > $2::bigint
order by seq
limit $3::int
