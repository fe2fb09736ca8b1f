-- The last $4 events that failed before $1 and are in one of the states $2, of consumer $3 where it is given. Each consumer and state is
-- a branch of the index claim_failed_consumer, read from its end. First comes twice the share that each branch has if all are alike; of
-- those that are denser, so that the $4 newest of these lie farther back, come $4 more. The states are bounded from both sides, and not
-- compared by "=", so that no other index has the order. No locks.
with branch as materialized (
    select c.id as consumer, s.state, least($4::bigint, 2 * $4 / count(*) over () + 1) as share
    from {schema}.consumer c
    cross join unnest($2::text[]) s (state)
    cross join lateral (
        select from {schema}.claim_failed f
        where f.consumer = c.id and f.state >= s.state and (f.state, f.id) < (s.state, $1::bigint)
        order by f.state desc, f.id desc limit 1) newest
    where $3::text is null or c.name = $3
), first as materialized (
    select b.consumer, b.state, b.share, f.id
    from branch b
    cross join lateral (
        select f.id from {schema}.claim_failed f
        where f.consumer = b.consumer and f.state >= b.state and (f.state, f.id) < (b.state, $1)
        order by f.state desc, f.id desc limit b.share) f
), back as materialized (
    select coalesce((select id from first order by id desc offset $4 - 1 limit 1), 0) as id
), dense as materialized (
    select f.consumer, f.state, min(f.id) as id from first f
    group by f.consumer, f.state, f.share
    having count(*) = f.share and min(f.id) > (select id from back)
)
select id from (
    select id from first
    union all
    select f.id
    from dense d
    cross join lateral (
        select f.id from {schema}.claim_failed f
        where f.consumer = d.consumer and f.state >= d.state and (f.state, f.id) < (d.state, d.id)
        order by f.state desc, f.id desc limit $4) f
) f
order by id desc
limit $4
