-- What failed alike and is in one of the states $3, of consumer $1 and group $2 where those are given, the most frequent first, at
-- most $4. Reads claim_failed_count, which has about a row for each consumer, state and group; the first event of each group by
-- the index on groups and states.
with counted as (
    select n.error_group, n.consumer, sum(n.events) as events, max(n.last_at) as last
    from {schema}.claim_failed_count n
    where n.state = any ($3::text[]) and n.error_group = coalesce($2::text, n.error_group)
      and ($1::text is null or n.consumer = (select id from {schema}.consumer where name = $1))
    group by 1, 2 having sum(n.events) > 0
), grouped as (
    select k.error_group, sum(k.events)::int as events, array_agg(c.name order by c.name) as consumers, max(k.last) as last
    from counted k join {schema}.consumer c on c.id = k.consumer
    group by 1 order by 2 desc, 1 limit $4::int
)
select g.error_group, {schema}.claim_failed_alike(first.reason, first.error), g.events, g.consumers, first.first_at, g.last
from grouped g cross join lateral (
    select f.* from unnest($3::text[]) s (state) cross join lateral (
        select f.id, f.reason, f.error, f.first_at from {schema}.claim_failed f
        where f.error_group = g.error_group and f.state = s.state
          and ($1::text is null or f.consumer = (select id from {schema}.consumer where name = $1))
        order by f.id limit 1) f
    order by f.id limit 1) first
order by g.events desc, g.error_group
