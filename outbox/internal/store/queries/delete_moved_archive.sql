-- What delete_archive.sql is for rows that were no longer at their places.
with gone as (
    delete from {schema}.outbox o
    using unnest($1::smallint[], $2::bigint[], $3::text[]) as d (shard, seq, event_id)
    where o.shard = d.shard and o.seq = d.seq and o.event_id = d.event_id
    returning o.shard, o.seq, o.event_id, o.topic, o.key, o.headers, o.payload, o.created_at, o.replayed
)
insert into {schema}.outbox_archive (shard, seq, event_id, topic, key, headers, payload, created_at)
select shard, seq, event_id, topic, key, headers, payload, created_at from gone where not replayed
