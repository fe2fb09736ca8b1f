-- Replays that keep a pace, the last first, and what became of the oldest $3 of each one's events that were not handled when a step last
-- looked, by the index of claim_replay_event on replays.
select r.id, r.actor, r.note, r.selection, r.rate, r.max_failed, r.state, r.reason, r.started_at, r.stepped_at, r.ended_at,
    r.selected, r.replayed, r.in_flight, f.untried, f.retrying, f.dead, f.counted >= $3::int,
    coalesce((select sum(events) from {schema}.claim_replay_superseded where replay = r.id), 0)::bigint
from {schema}.claim_replay r
cross join lateral (
    select count(*) as counted, count(*) filter (where state in ('retrying', 'blocked') and attempts = 0) as untried,
        count(*) filter (where state = 'nacked' or state in ('retrying', 'blocked') and attempts > 0) as retrying,
        count(*) filter (where state = 'dead') as dead
    from (select id from {schema}.claim_replay_event where replay = r.id order by id limit $3::int) e
    left join {schema}.claim_failed using (id)) f
where $1::bigint is null or r.id = $1
order by r.id desc limit $2::int
