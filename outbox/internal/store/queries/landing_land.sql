-- Makes rows of events in the WAL, in their order, and advances the marker from $1, $2, $3 to $4, $5, $6: what was landed, the commit of a
-- transaction that is landed in parts, and how many of its messages. If another relay has landed meanwhile, it changes nothing and returns 0.
-- Messages that are no events become dead events without topic and key. Locks the marker's row, before any number is taken.
with marker as (
    update {schema}.outbox_landing set landed = $4::pg_lsn, part_of = $5::pg_lsn, part = $6::int, landed_at = now()
    where system = $7::text and database = (select oid from pg_database where datname = current_database())
      and landed = $1::pg_lsn and part_of = $2::pg_lsn and part = $3::int
    returning 1
), bad as (
    insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, reason)
    select b.hash, {schema}.outbox_shard_of(b.hash), 0, b.event_id, '', '', '{}', b.payload, timestamptz 'epoch' + b.created * interval '1 microsecond', 'dead', b.reason
    from unnest($15::bigint[], $16::text[], $17::bytea[], $18::bigint[], $19::text[]) with ordinality
         as b (hash, event_id, payload, created, reason, place)
    where exists (select from marker)
    order by b.place
), good as (
    insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload, created_at)
    select e.shard, {schema}.outbox_next(e.shard),
           e.event_id, e.topic, e.key, e.headers, e.payload, timestamptz 'epoch' + e.created * interval '1 microsecond'
    from (
        select {schema}.outbox_shard_of(u.hash) as shard, u.event_id, u.topic, u.key, u.headers, u.payload, u.created
        from unnest($8::bigint[], $9::text[], $10::text[], $11::text[], $12::bytea[], $13::bytea[], $14::bigint[])
             as u (hash, event_id, topic, key, headers, payload, created)
        where exists (select from marker)
    ) as e
)
select count(*) from marker
