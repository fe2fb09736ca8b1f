-- Forgets which events of a replay were handled, among its oldest 5,000, by the index of claim_replay_event on replays: a step replays
-- fewer, so what others read stays small.
delete from {schema}.claim_replay_event where id in (
    select e.id from (select id from {schema}.claim_replay_event where replay = $1::bigint order by id limit 5000) e
    where not exists (select from {schema}.claim_failed f where f.id = e.id))
