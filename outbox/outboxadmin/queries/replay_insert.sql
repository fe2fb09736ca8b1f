-- Inserts archived events into the outbox again, in the order of the arrays, as insert.sql does. The relay does not put them
-- into the archive once more.
insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload, created_at, replayed)
select e.shard, {schema}.outbox_next(e.shard), e.event_id, e.topic, e.key, e.headers, e.payload, clock_timestamp(), true
from (
    select {schema}.outbox_shard_of(u.hash) as shard, u.event_id, u.topic, u.key, u.headers, u.payload
    from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::bytea[])
         as u (hash, event_id, topic, key, headers, payload)
) as e
