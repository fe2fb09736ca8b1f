-- Leases due events, by setting a later due_at. Uses the index on due_at, and the index on keys to skip events behind another of
-- their key. Leaves out $5, the events that this subscription has in flight. Locks the rows and skips locked ones: a handler locks
-- its event's row until it ends. An event of another topic that has been due for $6 milliseconds has no subscription, because its
-- consumer's topic was renamed. With $6 it is leased too, and gets this topic.
with due as (
    select f.id, f.topic from {schema}.claim_failed f
    where f.consumer = (select id from {schema}.consumer where name = $1) and f.state = 'retrying' and f.due_at <= now()
      and (f.topic in ($2, '') or f.due_at <= now() - $6::bigint * interval '1 millisecond') and f.id <> all ($5::bigint[])
      and (f.key = '' or not exists (select from {schema}.claim_failed e
          where e.consumer = f.consumer and e.key = f.key and e.key <> '' and e.id < f.id and e.state <> 'nacked'))
    order by f.due_at limit $3::int for update skip locked
)
update {schema}.claim_failed f set due_at = now() + $4::bigint * interval '1 millisecond', topic = case when f.topic = '' then '' else $2 end
from due where f.id = due.id
returning f.id, f.record, f.event_id, f.key, f.attempts, f.headers, f.payload, f.due_at, f.reason = 'malformed', due.topic
