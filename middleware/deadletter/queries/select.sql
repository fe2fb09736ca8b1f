-- A page of events that failed: the next $14 behind $1, up to $2, that are selected, in the order in which they failed first. By
-- the index that fits what is given: on groups and states, events, keys, or the primary key. No locks.
select f.id, f.event_id, f.consumer, c.name, f.key, f.state, f.error_group, f.first_at, f.failed_at, f.xmin
from {schema}.claim_failed f
join {schema}.consumer c on c.id = f.consumer
where f.id > $1::bigint and f.id <= $2::bigint
  and ($3::text[] is null or f.event_id = any ($3))
  and ($4::text is null or f.consumer = (select id from {schema}.consumer where name = $4))
  and ($5::text is null or f.key = $5 and f.key <> '')
  and ($6::text is null or f.error_group = $6)
  and ($7::text is null or f.state = $7)
  and ($8::text[] is null or f.state = any ($8))
  and ($9::text is null or f.topic = $9)
  and ($10::text is null or f.reason = $10)
  and ($11::timestamptz is null or f.failed_at >= $11)
  and ($12::timestamptz is null or f.failed_at < $12)
  and ($13::bigint[] is null or f.id = any ($13))
order by f.id
limit $14::int
