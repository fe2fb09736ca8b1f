-- Failed and delayed events, up to $4 of each: of the states $1, of topic $2, key $3 and group $6 where those are given. The
-- payload only if $5 asks for it. Of delayed events alone, the failed ones are not read. A group is the events with the same reason but for numbers, IDs and quoted text. Reads the tables from the start of their indexes; no locks.
select event_id, topic, key, state, attempts, created_at, at, reason, command, payload, alike
from (
    (select 0 as kind, id, event_id, topic, key, state, attempts, created_at, retry_at as at, reason,
            coalesce(command, '') as command, case when $5::boolean then payload end as payload,
            case when reason <> '' then left(md5({alike}reason{/alike}), 8) else '' end as alike
     from {schema}.outbox_failed
     where $1::text[] <> '{delayed}' and state = any($1::text[]) and ($2::text is null or topic = $2) and ($3::text is null or key = $3)
       and ($6::text is null or reason <> '' and left(md5({alike}reason{/alike}), 8) = $6)
     order by id limit $4)
    union all
    (select 1, row_number() over (order by due_at), event_id, topic, key, 'delayed', 0, created_at, due_at, '', '',
            case when $5::boolean then payload end, ''
     from {schema}.outbox_delayed
     where 'delayed' = any($1::text[]) and $6::text is null and ($2::text is null or topic = $2) and ($3::text is null or key = $3)
     order by due_at limit $4)
) e
order by kind, id
limit $4
