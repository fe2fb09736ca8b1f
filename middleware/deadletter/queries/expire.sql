-- The next 1,000 dead letters behind ($3, $4) of consumers $1 that failed last more than $2 seconds ago: by claim_failed_state, from the
-- oldest. Of $5 alone where those are given, by claim_failed's primary key. Without those that an operator has changed since, which
-- claim_audit_event tells, and without those whose turn in a replay is yet to come, unless nobody has continued it for a day.
select f.id, f.event_id, f.consumer, c.name, f.key, f.state, f.error_group, f.first_at, f.failed_at, f.xmin
from {schema}.claim_failed f
join {schema}.consumer c on c.id = f.consumer
join unnest($1::text[], $2::float8[]) k (name, seconds) on k.name = c.name
where f.state = 'dead' and f.failed_at >= $3::timestamptz and (f.failed_at, f.id) > ($3, $4::bigint)
  and f.failed_at < now() - (select min(s) from unnest($2) s) * interval '1 second'
  and f.failed_at < now() - k.seconds * interval '1 second'
  and ($5::bigint[] is null or f.id = any ($5))
  and not exists (select from {schema}.claim_audit a
      where a.event_id = f.event_id and a.consumer = c.name and a.action <> 'reveal' and a.at >= now() - k.seconds * interval '1 second')
  and not exists (select from {schema}.claim_replay r
      where r.state = 'running' and r.stepped_at > now() - interval '1 day' and f.id > r.above and f.id <= r.up_to)
order by f.failed_at, f.id
limit 1000
