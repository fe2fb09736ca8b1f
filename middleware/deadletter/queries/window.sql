-- The last $6 events that failed before $1 and are in one of the states $2, of consumer $3 and group $4 where those are given: of each
-- consumer and state by claim_failed_consumer, from its end. Fewer where a group or a time $5 is given. The states are bounded
-- from both sides, and not compared by "=", so that no other index has the order. No locks.
select f.id
from (select id from {schema}.consumer where $3::text is null or name = $3) c
cross join unnest($2::text[]) s (state)
cross join lateral (
    select f.id from {schema}.claim_failed f
    where f.consumer = c.id and f.state >= s.state and (f.state, f.id) < (s.state, $1::bigint)
      and ($4::text is null or f.error_group = $4)
      and ($5::timestamptz is null or f.failed_at < $5)
    order by f.state desc, f.id desc limit $6::int) f
order by f.id desc
limit $6
