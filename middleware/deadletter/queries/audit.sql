-- Notes what an operator does to events, by claim_failed's primary key: before it is done, because they may be gone then.
insert into {schema}.claim_audit (actor, action, consumer, event_id, detail)
select $2, $3, c.name, f.event_id, jsonb_strip_nulls(jsonb_build_object('note', nullif($4::text, ''), 'state', f.state, 'reason', f.reason,
    'error', nullif(left(f.error, 500), ''), 'attempts', f.attempts, 'key', nullif(f.key, ''), 'topic', nullif(f.topic, ''),
    'payload_sha256', encode(sha256(f.payload), 'hex'))) || $5::jsonb
from {schema}.claim_failed f join {schema}.consumer c on c.id = f.consumer
where f.id = any ($1::bigint[])
order by f.id
