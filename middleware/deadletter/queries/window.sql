-- The last $8 events that failed before $1 and are in one of the states $2, of consumer $4 where that is given: of each consumer and
-- state by an index in the order of IDs, from its end. Fewer where events $3, key $5 or a time $7 are given. No locks.
select f.id
from (select id from {schema}.consumer where $4::text is null or name = $4) c
cross join unnest($2::text[]) s (state)
cross join lateral (
    select f.id from {schema}.claim_failed f
    where f.consumer = c.id and f.state = s.state and f.id < $1::bigint
      and ($3::text[] is null or f.event_id = any ($3))
      and ($5::text is null or f.key = $5 and f.key <> '')
      and $6::text is null
      and ($7::timestamptz is null or f.failed_at < $7)
    order by f.id desc limit $8::int) f
order by f.id desc
limit $8
