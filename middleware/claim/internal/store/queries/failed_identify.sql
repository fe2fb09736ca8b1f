-- Gives an event without a usable ID the ID that was found at its replay, by claim_failed's primary key. If the index on keys has
-- an earlier event of its key, the event is blocked.
update {schema}.claim_failed f
set event_id = $2, record = $3::uuid, key = $4, headers = $5, reason = $6,
    state = case when behind then 'blocked' else 'retrying' end, due_at = case when not behind then now() end
from (
    select s.id, $4 <> '' and exists (select from {schema}.claim_failed e
        where e.consumer = s.consumer and e.key = $4 and e.key <> '' and e.id < s.id and e.state <> 'nacked') as behind
    from {schema}.claim_failed s where s.id = $1::bigint) s
where f.id = s.id
