-- Deletes failed events that were published, and puts them into the archive, except those that were replayed from there. $2 is the
-- name of the relay. Locks those rows. It does not compare the shard, because the number of shards may have changed since they were read.
with gone as (
    delete from {schema}.outbox_failed where id = any($1::bigint[])
    returning shard, seq, event_id, topic, key, headers, payload, created_at, replayed, attempts
)
insert into {schema}.outbox_archive (shard, seq, event_id, topic, key, headers, payload, created_at, relay, attempts)
select shard, seq, event_id, topic, key, headers, payload, created_at, $2::text, attempts + 1 from gone where not replayed
