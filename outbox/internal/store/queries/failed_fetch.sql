-- The failed events that are due and not blocked: at most $2, oldest first, without the IDs $3 and the topics $4. Each is followed by the
-- events that it blocks, at most $5 including itself. Returns payloads of at most $6 bytes, but at least one event, and how many events
-- are due, up to $2. Uses the indexes outbox_failed_due and outbox_failed_key.
with heads as materialized (
    select f.id, f.hash, f.key from {schema}.outbox_failed f
    where f.shard = $1::smallint and f.state = 'retrying' and f.retry_at <= now() and f.id <> all($3::bigint[]) and f.topic <> all($4::text[])
    and (f.key = '' or not exists (
        select from {schema}.outbox_failed e
        where e.shard = f.shard and e.hash = f.hash and e.key = f.key and e.id < f.id and e.state <> 'discarded'))
    order by f.id
    limit $2::int
)
select head, id, state, attempts, reason, seq, event_id, topic, key, headers, payload, created_at, (select count(*) from heads)
from (
    select *, sum(size) over (order by head, id rows unbounded preceding) - size as before
    from (
        select h.id as head, e.*, octet_length(e.payload) + octet_length(e.headers) as size
        from heads h
        cross join lateral (
            select * from {schema}.outbox_failed e
            where e.shard = $1::smallint and e.hash = h.hash and e.key = h.key and e.id >= h.id and e.state <> 'discarded'
              and (h.key <> '' or e.id = h.id)
            order by e.id
            limit $5::int
        ) as e
    ) as sized
) as summed
where before = 0 or before < $6::bigint
order by head, id
