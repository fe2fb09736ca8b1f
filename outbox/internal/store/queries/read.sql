-- What is new in a shard: rows above a number, in order, by the index outbox_shard_seq, without locks. Only the holder of
-- the shard's lease reads it. Payloads beyond $4 bytes in all are left out (null). The lengths come from the row, also of
-- payloads that are stored elsewhere.
select 1, place, writer, seq, event_id, topic, key, headers, case when before < $4::bigint or before = 0 then payload end, size, created_at
from (
    select *, sum(size) over (order by seq rows unbounded preceding) - size as before
    from (
        select ctid as place, xmin as writer, seq, event_id, topic, key, headers, payload, created_at,
               octet_length(headers) + octet_length(payload) as size
        from {schema}.outbox
        where shard = $1::smallint and seq > $2::bigint
        order by seq
        limit $3::int
    ) as above
) as summed
order by seq
