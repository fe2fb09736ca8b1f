-- At most $2 replays, those that run first, then the last ones. With $1 only that one. Without it those that have not finished, and those
-- among the last 1,000 actions. By the primary keys of outbox_audit and outbox_replay, and the index on replays that run; no locks.
with chosen as (
    select $1::bigint as id where $1::bigint is not null
    union
    (select id from {schema}.outbox_replay where $1::bigint is null and stopped_by is null order by id desc limit $2::int)
    union
    (select id from {schema}.outbox_replay where $1::bigint is null order by id desc limit $2::int)
    union
    select id from (select id, action from {schema}.outbox_audit where $1::bigint is null order by id desc limit 1000) a where action = 'replay'
)
select a.id, a.actor, coalesce(a.detail ->> 'note', ''), coalesce(a.detail ->> 'topic', ''), coalesce(a.detail ->> 'key', ''),
       (a.detail ->> 'since')::timestamptz, (a.detail ->> 'until')::timestamptz, coalesce(a.detail ->> 'to', ''), coalesce(r.rate, 0),
       case when r.id is null then 'done' when r.stopped_by is null then 'running' else 'stopped' end, coalesce(r.stopped_by, ''),
       a.at, coalesce(r.stepped_at, a.at), nullif(r.published_at, '-infinity'), a.events, coalesce(r.selected, a.events), coalesce(r.more, false)
from chosen join {schema}.outbox_audit a using (id) left join {schema}.outbox_replay r using (id)
where a.action = 'replay'
order by r.id is not null and r.stopped_by is null desc, a.id desc
limit $2::int
