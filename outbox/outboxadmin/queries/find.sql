-- Where an event is, and what is before it (counted up to $2). The outbox has no index on event IDs and is read from end to
-- end, if $3 says so; the other tables by theirs. No locks.
with found as (
    select 'pending' as state, null::bigint as id, shard, seq, topic, key, headers, created_at, null::timestamptz as at,
           0 as attempts, '' as reason, '' as command, '' as sent_by
    from {schema}.outbox where $3::boolean and event_id = $1
    union all
    select state, id, shard, seq, topic, key, headers, created_at, case state when 'retrying' then retry_at else failed_at end,
           attempts, reason, coalesce(command, ''), ''
    from {schema}.outbox_failed where event_id = $1
    union all
    select 'delayed', null, {schema}.outbox_shard_of(hash), 0, topic, key, headers, created_at, due_at, 0, '', '', ''
    from {schema}.outbox_delayed where event_id = $1
    union all
    select 'archived', null, shard, seq, topic, key, headers, created_at, published_at, attempts, '', '', relay
    from {schema}.outbox_archive where event_id = $1
)
select f.state, f.shard, f.topic, f.key, f.headers, f.created_at, f.at, f.attempts, f.reason, f.command,
       case f.state when 'pending' then (
           select count(*) from (select from {schema}.outbox o where o.shard = f.shard and o.seq < f.seq limit $2) n) else 0 end,
       f.id, case f.state when 'archived' then f.sent_by else coalesce(nullif(r.name, ''), s.relay_id::text, '') end,
       s.relay_id is not null and s.expires_at > now(), coalesce(s.suspect = $1, false), cardinality(s.suspect_deaths), clock_timestamp()
from found f
left join {schema}.outbox_shard s on s.shard = f.shard
left join {schema}.outbox_relay r on r.relay_id = s.relay_id
order by f.created_at, f.id
