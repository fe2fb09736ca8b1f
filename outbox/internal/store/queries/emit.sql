-- Writes events into the WAL, in the order of the array: one transactional logical message each, and no row. Fails the transaction unless a
-- usable replication slot keeps the messages: the cast to pg_lsn fails, and writer.Hint recognizes its text. A slot whose
-- confirmed_flush_lsn is null is still being created and may miss running transactions, so it does not count. The slot's name is built
-- here, because a call of outbox_landing_slot() costs more. No locks.
with slot as materialized (
    select exists (
        select from pg_replication_slots s
        where s.slot_name = btrim('{schema}', '"') || '_log_' || s.datoid and s.plugin = 'pgoutput' and s.database = current_database()
          and not s.temporary and s.confirmed_flush_lsn is not null and s.wal_status <> 'lost'
    ) as keeps
)
select count(case when slot.keeps then pg_logical_emit_message(true, btrim('{schema}', '"') || '_outbox', e.content)
                  else ('no slot keeps the outbox''s WAL of ' || current_database())::pg_lsn end)
from slot, unnest($1::bytea[]) as e (content)
