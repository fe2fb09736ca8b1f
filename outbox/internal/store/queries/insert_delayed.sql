-- Like insert.sql, for events of which some are delivered later. Events with a delay, in microseconds of this server's clock, wait in a
-- table of their own. Writes the indexes outbox_shard_seq, outbox_delayed_due and outbox_delayed_event.
with e as materialized (
    select u.hash, {schema}.outbox_shard_of(u.hash) as shard, u.event_id, u.topic, u.key, u.headers, u.payload, u.delay
    from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::bytea[], $7::bigint[])
         as u (hash, event_id, topic, key, headers, payload, delay)
), later as (
    insert into {schema}.outbox_delayed (due_at, hash, event_id, topic, key, headers, payload)
    select clock_timestamp() + e.delay * interval '1 microsecond', e.hash, e.event_id, e.topic, e.key, e.headers, e.payload
    from e where e.delay > 0
)
insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload, created_at)
select e.shard, {schema}.outbox_next(e.shard),
       e.event_id, e.topic, e.key, e.headers, e.payload, clock_timestamp()
from e where e.delay = 0
