-- Forgets events of a replay that were handled, the oldest first, so that a step reads few of them.
delete from {schema}.claim_replay_event where id in (
    select e.id from {schema}.claim_replay_event e
    where e.replay = $1::bigint and not exists (select from {schema}.claim_failed f where f.id = e.id)
    order by e.id limit 5000)
