-- The slot $1: whether it exists; whether it can be used, in this database; whether its WAL was removed; the process that reads it, or 0;
-- whether this relay ($2) started that process; whether the relay that started it has ended: it has no row, and is older than a lease
-- ($3, in milliseconds); how many bytes of the WAL the server keeps for the slot; whether another relay holds shards; up to where the WAL is
-- flushed; when the server started; whether the server takes the process for a synchronous standby; up to where the reader has confirmed
-- the WAL, or 0; and whether the slot ends with its session. No locks.
select s.slot_name is not null,
       coalesce(s.plugin = 'pgoutput' and s.database = current_database(), false),
       coalesce(s.wal_status = 'lost', false),
       coalesce(s.active_pid, 0),
       coalesce(a.application_name = 'millrace-relay-' || $2::uuid, false),
       coalesce(a.backend_start < now() - $3::int * interval '1 millisecond' and not exists (
           select from {schema}.outbox_relay r where r.expires_at > now() and a.application_name = 'millrace-relay-' || r.relay_id), false),
       coalesce(pg_wal_lsn_diff(pg_current_wal_flush_lsn(), s.restart_lsn), 0)::bigint,
       exists (select from {schema}.outbox_shard where relay_id <> $2::uuid and expires_at > now()),
       pg_current_wal_flush_lsn(), pg_postmaster_start_time(),
       exists (select from pg_stat_replication r where r.pid = s.active_pid and r.sync_state <> 'async'),
       coalesce(s.confirmed_flush_lsn, '0/0'), coalesce(s.temporary, false)
from (select) as one
left join pg_replication_slots s on s.slot_name = $1::text
left join pg_stat_activity a on a.pid = s.active_pid
