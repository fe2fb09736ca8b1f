-- What is known about the events that publishers put into the WAL: the slot's name; whether it keeps them; whether it is being created;
-- whether its WAL was removed; whether a relay reads it, and whether that one has not moved the marker for a minute; how many bytes of WAL
-- come after what it has confirmed, and how many the server keeps for it; whether standbys may synchronize it; when the marker was last
-- moved; and the last cut. No row if it was never used. No locks.
select n.slot, coalesce(s.ours and s.confirmed_flush_lsn is not null, false), coalesce(s.ours and s.confirmed_flush_lsn is null, false),
       coalesce(s.wal_status = 'lost', false), coalesce(s.active, false), coalesce(s.active and m.landed_at < clock_timestamp() - interval '1 minute', false),
       greatest(case when pg_is_in_recovery() then 0 else coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn), 0) end, 0)::bigint,
       greatest(case when pg_is_in_recovery() then 0 else coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0) end, 0)::bigint,
       coalesce((to_jsonb(s) ->> 'failover')::boolean, false),
       m.landed_at, coalesce(m.cuts, 0), m.cut_at, coalesce(m.cut_from::text, ''), coalesce(m.cut_to::text, ''), coalesce(m.cut_reason, '')
from (select {schema}.outbox_landing_slot()) as n (slot)
left join {schema}.outbox_landing m on true
left join (
    select p.*, p.plugin = 'pgoutput' and not p.temporary as ours from pg_replication_slots p where p.database = current_database()
) s on s.slot_name = n.slot
where m.slot is not null or s.slot_name is not null
