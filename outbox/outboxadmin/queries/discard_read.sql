-- The next pending events of the topic $1 in the shard $2: at most $5 above the number $3, written before $4, of at most $6 bytes, and
-- at least one. The index outbox_shard_seq; no locks. The lengths come from the row, also of payloads that are stored elsewhere.
select seq, event_id, key
from (
    select *, sum(size) over (order by seq rows unbounded preceding) - size as before
    from (
        select seq, event_id, key, octet_length(headers) + octet_length(payload) as size
        from {schema}.outbox
        where shard = $2::smallint and seq > $3::bigint and topic = $1::text and created_at < $4::timestamptz
        order by seq
        limit $5::int
    ) as sized
) as summed
where before = 0 or before < $6::bigint
order by seq
