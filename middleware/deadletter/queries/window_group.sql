-- As window.sql, for a group $4: of each state by claim_failed_group, from its end. No locks.
select f.id
from unnest($2::text[]) s (state)
cross join lateral (
    select f.id from {schema}.claim_failed f
    where f.error_group = $4::text and f.state >= s.state and (f.state, f.id) < (s.state, $1::bigint)
      and ($3::text is null or f.consumer = (select id from {schema}.consumer where name = $3))
      and ($5::timestamptz is null or f.failed_at < $5)
    order by f.state desc, f.id desc limit $6::int) f
order by f.id desc
limit $6
