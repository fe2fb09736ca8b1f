-- Moves events to the failed events, in their order, if this relay still holds the shard's lease of the term $10. Uses the index
-- outbox_shard_seq. Locks the shard's row and the rows that it moves.
with lease as (
    select shard from {schema}.outbox_shard where shard = $1::smallint and relay_id = $2::uuid and term = $10::bigint for update
), gone as (
    delete from {schema}.outbox
    where ctid = any (array(
        select place
        from unnest($3::bigint[], $4::text[]) as d (seq, event_id)
        cross join lateral (
            select ctid as place from {schema}.outbox o
            where o.shard = $1::smallint and o.seq = d.seq and o.event_id = d.event_id
            offset 0 -- one index probe for each row; another join may read the whole table
        ) as there))
    and exists (select from lease)
    returning shard, seq, event_id, topic, key, headers, payload, created_at, replayed
), moved as (
    insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, attempts, reason, retry_at, replayed)
    select m.hash, g.shard, g.seq, g.event_id, g.topic, g.key, g.headers, g.payload, g.created_at, m.state, m.attempts, m.reason,
           case m.state when 'retrying' then now() + m.retry_ms * interval '1 millisecond' end, g.replayed
    from unnest($3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::int[], $8::text[], $9::int[])
         with ordinality as m (seq, event_id, hash, state, attempts, reason, retry_ms, place)
    join gone g on g.seq = m.seq and g.event_id = m.event_id
    order by m.place
    returning 1
)
select (select count(*) from lease), (select count(*) from moved)
