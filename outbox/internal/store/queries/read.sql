-- New rows of a shard: those above a number, in order, by the index outbox_shard_seq. No locks. Only the holder of the shard's lease
-- reads it. Payloads of more than $4 bytes and of the topics in $5 are left out (null). The size is in the row even if the payload is
-- TOASTed; it is returned for all rows, so that $5 is searched once for each.
select ctid, xmin, seq, event_id, topic, key, headers, case when octet_length(payload) <= $4::bigint and topic <> all($5::text[]) then payload end,
       octet_length(headers) + octet_length(payload), created_at
from {schema}.outbox
where shard = $1::smallint and seq > $2::bigint
order by seq
limit $3::int
