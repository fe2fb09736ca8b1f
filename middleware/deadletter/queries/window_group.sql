-- As window.sql, where a group $6 is given: of each state by the index on groups, from its end. No locks.
select f.id
from unnest($2::text[]) s (state)
cross join lateral (
    select f.id from {schema}.claim_failed f
    where f.error_group = $6::text and f.state = s.state and f.id < $1::bigint
      and ($3::text[] is null or f.event_id = any ($3))
      and ($4::text is null or f.consumer = (select id from {schema}.consumer where name = $4))
      and ($5::text is null or f.key = $5 and f.key <> '')
      and ($7::timestamptz is null or f.failed_at < $7)
    order by f.id desc limit $8::int) f
order by f.id desc
limit $8
