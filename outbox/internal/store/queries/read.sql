-- What is new in a shard: rows above a number, in order, by the index outbox_shard_seq, without locks. Only the holder of
-- the shard's lease reads it. Payloads of more than $4 bytes are left out (null). The lengths come from the row, also of
-- payloads that are stored elsewhere.
select 1, ctid, xmin, seq, event_id, topic, key, headers, case when octet_length(payload) <= $4::bigint then payload end,
       octet_length(headers) + octet_length(payload), created_at
from {schema}.outbox
where shard = $1::smallint and seq > $2::bigint
order by seq
limit $3::int
