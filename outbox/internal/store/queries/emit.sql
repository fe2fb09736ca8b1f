-- Writes events into the log, in the order of the array: one transactional message each, and no row. A slot that is usable must keep them.
-- It is not yet while it has confirmed nothing: it may not see transactions that run while it is created. Without one the cast fails, with
-- the text by which Go knows that, and so does the transaction. The slot's name is that of outbox_landing_slot, whose call would cost more. No locks.
with slot as materialized (
    select exists (
        select from pg_replication_slots s
        where s.slot_name = btrim('{schema}', '"') || '_log_' || s.datoid and s.plugin = 'pgoutput' and s.database = current_database()
          and not s.temporary and s.confirmed_flush_lsn is not null and s.wal_status <> 'lost'
    ) as keeps
)
select count(case when slot.keeps then pg_logical_emit_message(true, btrim('{schema}', '"') || '_outbox', e.content)
                  else ('no slot keeps the outbox''s events in the log of ' || current_database())::pg_lsn end)
from slot, unnest($1::bytea[]) as e (content)
