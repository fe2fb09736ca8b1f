-- What is known of events that failed, by claim_failed's primary key; payload, headers and history only if asked for.
select f.id, f.event_id, c.name, f.key, f.state, f.attempts, f.reason, f.error, f.handler, f.topic, f.replayed, f.first_at, f.failed_at,
       f.due_at, f.error_group, coalesce(octet_length(f.payload), 0), case when $2::boolean then f.history end, case when $2 then f.headers end,
       case when $2 then f.payload end
from {schema}.claim_failed f join {schema}.consumer c on c.id = f.consumer
where f.id = any ($1::bigint[])
order by f.id
