-- Makes step $1 if the latest is the one before it, and records who made it: one row, or none. broker_lock excludes other steps.
with step as (
    insert into {schema}.outbox_broker as record (epoch, from_name, to_name, phase) values ($1::bigint, $2::text, $3::text, $4::text)
    on conflict (one) do update set epoch = excluded.epoch, from_name = excluded.from_name, to_name = excluded.to_name,
        phase = excluded.phase, changed_at = now()
    where record.epoch = excluded.epoch - 1
    returning epoch
)
insert into {schema}.outbox_audit (actor, action, events, detail)
select $5, 'migration step', 0, jsonb_build_object('from', $2::text, 'to', $3::text, 'phase', $4::text) from step
