-- Writes one event into the WAL, as emit.sql does, but without an array.
select case when exists (
    select from pg_replication_slots s
    where s.slot_name = btrim('{schema}', '"') || '_log_' || s.datoid and s.plugin = 'pgoutput' and s.database = current_database()
      and not s.temporary and s.confirmed_flush_lsn is not null and s.wal_status <> 'lost'
) then pg_logical_emit_message(true, btrim('{schema}', '"') || '_outbox', $1::bytea) else ('no slot keeps the outbox''s WAL of ' || current_database())::pg_lsn end
