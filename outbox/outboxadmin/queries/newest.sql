-- The last failed events, the last first, at most $4: of topic $2, key $3 and group $6 where those are given, among the last $7 of each
-- of the states $1. The payload only if $5 asks for it. By the index on states; no locks.
select event_id, topic, key, f.state, attempts, created_at, retry_at, reason, coalesce(command, ''), case when $5::boolean then payload end,
       case when reason <> '' then left(md5({alike}reason{/alike}), 8) else '' end
from unnest($1::text[]) s (state)
cross join lateral (
    select f.* from {schema}.outbox_failed f
    where f.state >= s.state and (f.state, f.id) <= (s.state, 9223372036854775807)
    order by f.state desc, f.id desc limit $7::int) f
where ($2::text is null or topic = $2) and ($3::text is null or key = $3)
  and ($6::text is null or reason <> '' and left(md5({alike}reason{/alike}), 8) = $6)
order by f.id desc
limit $4::int
