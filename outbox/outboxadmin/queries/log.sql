-- What is known about the events that publishers put into the log: the slot's name; whether it exists; whether its log was removed; whether a
-- relay reads it; how many bytes of the log come after what it has confirmed, and how many the server keeps for it; whether standbys may
-- synchronize it; when rows were last made of it; and the last time that a part of it was lost. No row if it was never used. No locks.
select n.slot, s.slot_name is not null, coalesce(s.wal_status = 'lost', false), coalesce(s.active, false),
       greatest(case when pg_is_in_recovery() then 0 else coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn), 0) end, 0)::bigint,
       greatest(case when pg_is_in_recovery() then 0 else coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0) end, 0)::bigint,
       coalesce((to_jsonb(s) ->> 'failover')::boolean, false),
       m.landed_at, coalesce(m.cuts, 0), m.cut_at, coalesce(m.cut_from::text, ''), coalesce(m.cut_to::text, ''), coalesce(m.cut_reason, '')
from (select {schema}.outbox_log_slot()) as n (slot)
left join {schema}.outbox_log m on true
left join pg_replication_slots s on s.slot_name = n.slot and s.database = current_database()
where m.slot is not null or s.slot_name is not null
