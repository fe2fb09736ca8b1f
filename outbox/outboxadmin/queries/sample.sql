-- The last $2 failed events of each of the states $1, by the index on states, grouped as in groups.sql, a digest of each group's events,
-- their states and commands, and whether a state has more of them. The states are bounded from both sides, and not compared by "=", so that no
-- other index has the order. No locks.
with newest as materialized (
    select f.* from unnest($1::text[]) s (state)
    cross join lateral (
        select f.id, f.reason, f.state, f.topic, f.failed_at, f.command from {schema}.outbox_failed f
        where f.state >= s.state and (f.state, f.id) <= (s.state, 9223372036854775807)
        order by f.state desc, f.id desc limit $2::int) f
), alike as (
    select {alike}reason{/alike} as text, id, state, topic, failed_at, command from newest where reason <> ''
)
select left(md5(text), 8), text, count(*), count(*) filter (where state = 'dead'), count(*) filter (where state = 'retrying'),
       count(*) filter (where state = 'discarded'), array_agg(distinct topic order by topic), min(failed_at), max(failed_at),
       md5(string_agg(concat_ws(' ', id, state, command), ',' order by id)),
       (select bool_or(n = $2) from (select count(*) as n from newest group by state) c)
from alike
group by text
order by 3 desc, 2
