-- Inserts one event, like insert.sql, but without arrays: unnesting them costs as much as the row.
insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload, created_at)
values ({schema}.outbox_shard_of($1::bigint), {schema}.outbox_next({schema}.outbox_shard_of($1::bigint)),
        $2::text, $3::text, $4::text, $5::bytea, $6::bytea, clock_timestamp())
