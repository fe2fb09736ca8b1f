-- At most $2 replays that keep a pace, those that run first, then the last ones; with $1 only that one. And what became of the oldest $3 of
-- each one's events that were not handled when a step last looked. By the primary key of claim_replay, its index on those that run, and the
-- index of claim_replay_event on replays; no locks.
with named as (
    select $1::bigint as id where $1::bigint is not null
    union
    (select id from {schema}.claim_replay where $1::bigint is null and state = 'running' order by id desc limit $2::int)
    union
    (select id from {schema}.claim_replay where $1::bigint is null order by id desc limit $2::int)
), chosen as (
    select r.* from named join {schema}.claim_replay r using (id) order by r.state = 'running' desc, id desc limit $2::int
)
select r.id, r.actor, r.note, r.selection, r.rate, r.max_failed, r.state, r.reason, r.started_at, r.stepped_at, r.ended_at,
    r.selected, r.replayed, r.in_flight, f.untried, f.retrying, f.dead, f.counted >= $3::int,
    coalesce((select sum(events) from {schema}.claim_replay_superseded where replay = r.id), 0)::bigint
from chosen r
cross join lateral (
    select count(*) as counted, count(*) filter (where state in ('retrying', 'blocked') and attempts = 0) as untried,
        count(*) filter (where state = 'nacked' or state in ('retrying', 'blocked') and attempts > 0) as retrying,
        count(*) filter (where state = 'dead') as dead
    from (select id from {schema}.claim_replay_event where replay = r.id order by id limit $3::int) e
    left join {schema}.claim_failed using (id)) f
order by r.state = 'running' desc, r.id desc
