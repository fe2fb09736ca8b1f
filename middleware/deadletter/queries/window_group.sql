-- As window.sql, for a group $3 of all consumers: of each state by claim_failed_group, from its end. No locks.
select f.id
from unnest($2::text[]) s (state)
cross join lateral (
    select f.id from {schema}.claim_failed f
    where f.error_group = $3::text and f.state >= s.state and (f.state, f.id) < (s.state, $1::bigint)
    order by f.state desc, f.id desc limit $4::int) f
order by f.id desc
limit $4
