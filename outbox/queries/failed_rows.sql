-- A due event ($3) and those of its key that wait behind it, in order, up to $4 events and $5 bytes but at least one; by the
-- index outbox_failed_key.
select id, state, attempts, seq, event_id, topic, key, headers, payload, created_at
from (
    select *, sum(octet_length(payload) + octet_length(headers)) over (order by id rows unbounded preceding)
              - octet_length(payload) - octet_length(headers) as before
    from (
        select * from {schema}.outbox_failed
        where shard = $1::smallint and key = $2::text and id >= $3::bigint and state <> 'discarded' and (key <> '' or id = $3::bigint)
        order by id
        limit $4::int
    ) as behind
) as summed
where before = 0 or before < $5::bigint
order by id
