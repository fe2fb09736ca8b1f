-- Makes dead letters of another consumer of these, by claim_failed's primary key, under the locks of their keys. One that the other
-- consumer has nacked is taken over, because its redelivery is absorbed now.
insert into {schema}.claim_failed (consumer, record, event_id, key, state, attempts, reason, error, history, handler, topic, headers, payload)
select $2::smallint, record, event_id, key, 'dead', attempts, reason, error, history, handler, topic, headers, payload
from {schema}.claim_failed where id = any ($1::bigint[]) order by id
on conflict (consumer, record) do update set state = 'dead', due_at = null, key = excluded.key, topic = excluded.topic, headers = excluded.headers, payload = excluded.payload
returning id
