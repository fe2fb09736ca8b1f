-- A due event ($4) and those of its key ($3, with hash $2) that it blocks, in order, up to $5 events and $6 bytes but at least
-- one; by the index outbox_failed_key.
select id, state, attempts, seq, event_id, topic, key, headers, payload, created_at
from (
    select *, sum(octet_length(payload) + octet_length(headers)) over (order by id rows unbounded preceding)
              - octet_length(payload) - octet_length(headers) as before
    from (
        select * from {schema}.outbox_failed
        where shard = $1::smallint and hash = $2::bigint and key = $3::text and id >= $4::bigint and state <> 'discarded'
          and (key <> '' or id = $4::bigint)
        order by id
        limit $5::int
    ) as behind
) as summed
where before = 0 or before < $6::bigint
order by id
