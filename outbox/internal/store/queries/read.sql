-- What is new in a shard: rows above a number, in order, by the index outbox_shard_seq, without locks. Only the holder of
-- the shard's lease reads it. Payloads of more than $4 bytes and those of the topics in $5 are left out (null); their sizes
-- come in their place, from the row, also of payloads that are stored elsewhere.
select ctid, xmin, seq, event_id, topic, key, headers, case when octet_length(payload) <= $4::bigint and topic <> all($5::text[]) then payload end,
       case when octet_length(payload) > $4::bigint or topic = any($5::text[]) then octet_length(headers) + octet_length(payload) end, created_at
from {schema}.outbox
where shard = $1::smallint and seq > $2::bigint
order by seq
limit $3::int
