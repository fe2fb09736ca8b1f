-- Locks a replay for a step, by its primary key, and tells how long the step has to wait and what became of what was replayed. It
-- counts at most $2 untried events.
select r.actor, r.note, r.selection, r.rate, r.max_failed, r.above, r.up_to, extract(epoch from r.due_at - now())::float8,
    case when r.max_failed < 1 then (select count(*) from (
        select from {schema}.claim_replay_event e join {schema}.claim_failed f on f.id = e.id
        where e.replay = r.id and f.state in ('retrying', 'blocked') and f.attempts = 0 limit $2::int) untried) else 0 end,
    case when r.max_failed < 1 then (select count(*) from {schema}.claim_replay_event e join {schema}.claim_failed f on f.id = e.id
        where e.replay = r.id and (f.state in ('dead', 'nacked') or f.attempts > 0)) else 0 end,
    r.replayed - coalesce((select sum(events) from {schema}.claim_replay_superseded where replay = r.id), 0)::bigint
from {schema}.claim_replay r where r.id = $1 and r.state = 'running' for no key update of r
