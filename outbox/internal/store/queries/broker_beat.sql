-- Registers the process in the migration for another $6 milliseconds. It knows step $7 and has had messages from a broker ($9, $10). Uses
-- the primary key.
insert into {schema}.outbox_broker_process as p (process_id, name, service, from_name, to_name, expires_at, epoch, consumers)
values ($1::uuid, $2::text, $3::text, $4::text, $5::text, clock_timestamp() + $6::int * interval '1 millisecond', $7::bigint, $8::jsonb)
on conflict (process_id) do update set expires_at = excluded.expires_at, consumers = excluded.consumers, epoch = excluded.epoch,
    epoch_at = case when p.epoch = excluded.epoch then p.epoch_at else clock_timestamp() end,
    from_busy = case when $9::boolean or p.expires_at < clock_timestamp() then clock_timestamp() else p.from_busy end,
    to_busy = case when $10::boolean or p.expires_at < clock_timestamp() then clock_timestamp() else p.to_busy end
