-- How an event stands with each consumer $1, whose claims have the locks $2. By its records $3 the primary keys of processed
-- (each day's), claim_failed and claim_start; $5 is its key, for the index on keys of claim_failed. What a
-- process has noted that was renewed within $6 seconds is in its hand, and no sign of a death. Who holds a lock is in pg_locks;
-- names of other roles' sessions are shown to those who may see them. No locks.
with held as materialized (
    select k.pid, (k.classid::bigint << 32) | k.objid::bigint as lock
    from pg_locks k join pg_database d on d.oid = k.database
    where k.locktype = 'advisory' and k.granted and k.objsubid = 1 and d.datname = current_database()
)
select c.name, p.claimed_at, coalesce(p.kept, false), p.committed, c.floor, coalesce(h.pid, 0), coalesce(a.application_name, ''), coalesce(host(a.client_addr), ''), a.xact_start,
       n.starts, coalesce(own.event_id, ''), coalesce(b.event_id, ''), coalesce(b.state, ''), clock_timestamp()
from unnest($1::text[], $2::bigint[]) as l (name, lock)
join {schema}.consumer c on c.name = l.name
left join lateral (
    select r.claimed_at, r.kept, case when r.kept is null and current_setting('track_commit_timestamp') = 'on' then pg_xact_commit_timestamp(r.xmin) end as committed
    from {schema}.processed r where r.event_id = any($3::uuid[]) and r.consumer = c.id order by r.claimed_at limit 1) p on true
left join lateral (
    select max(s.starts) as starts from {schema}.claim_start s
    where s.consumer = c.id and s.record = any($3) and (s.starts > 0 or not exists (
        select from {schema}.claim_run r where r.id = s.run and r.beat_at > clock_timestamp() - $6 * interval '1 second'))) n on true
left join lateral (select f.* from {schema}.claim_failed f where f.consumer = c.id and f.record = any($3) order by f.id limit 1) own on true
left join lateral (
    select f.event_id, f.state from {schema}.claim_failed f
    join {schema}.claim_key k on k.consumer = f.consumer and k.key = f.key
    where f.consumer = c.id and f.key = coalesce(nullif(own.key, ''), $5::text) and f.key <> '' and f.state <> 'nacked' and f.event_id <> $4::text
      and (own.id is null or own.state = 'nacked' or f.id < own.id)
    order by f.id limit 1) b on true
left join held h on h.lock = l.lock
left join pg_stat_activity a on a.pid = h.pid
order by c.name
