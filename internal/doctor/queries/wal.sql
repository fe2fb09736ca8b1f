-- The replication slots of the outbox's relays: whether the server has removed its log, how many bytes of it are kept, and whether nothing
-- bounds that, although no slot of the server keeps events that are in the log alone: a bound would lose them. No locks.
select slot_name, coalesce(wal_status = 'lost', false), active,
       case when pg_is_in_recovery() then 0 else coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0) end::bigint,
       current_setting('max_slot_wal_keep_size') = '-1'
       and not exists (select from pg_replication_slots l where l.plugin = 'pgoutput' and l.slot_name like '%\_log\_' || l.datoid)
from pg_replication_slots
where plugin = 'pgoutput' and database = current_database() and slot_name ~ ('^' || left($1::text, 40) || '_outbox_[0-9a-f]{8}$')
