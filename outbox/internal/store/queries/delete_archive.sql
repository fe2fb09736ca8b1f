-- Like delete.sql; deleted rows go to the archive, except those that were replayed from there. $4 is the
-- name of the relay.
with gone as (
    delete from {schema}.outbox
    where ctid = any($1::tid[]) and seq + 0 = any($2::bigint[]) and event_id = any($3::text[])
    returning shard, seq, event_id, topic, key, headers, payload, created_at, replayed
), kept as (
    insert into {schema}.outbox_archive (shard, seq, event_id, topic, key, headers, payload, created_at, relay)
    select shard, seq, event_id, topic, key, headers, payload, created_at, $4::text from gone where not replayed
)
select count(*), set_config('synchronous_commit', 'off', true) from gone
