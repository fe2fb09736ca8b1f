-- The holder of advisory lock $1, which belongs to the landing relay: its process; whether the process is of this relay ($2); and a value
-- that changes while it is alive, or '' if this role may not see one. No locks.
select l.pid, coalesce(a.application_name = 'millrace-relay-' || $2::uuid, false),
       coalesce(r.reply_time::text, case when a.state = 'idle' then a.state_change::text end, '')
from pg_locks l
left join pg_stat_activity a on a.pid = l.pid
left join pg_stat_replication r on r.pid = l.pid
where l.locktype = 'advisory' and l.granted and l.objsubid = 1 and (l.classid::bigint << 32) | l.objid::bigint = $1::bigint
  and l.database = (select oid from pg_database where datname = current_database())
