-- As window.sql, for a key $2, in any state, of consumer $3 where it is given: each consumer is a branch of the index claim_failed_key.
-- With the oldest of each branch, because what holds a key up stands there. No locks.
with branch as materialized (
    select c.id as consumer, least($4::bigint, 2 * $4 / count(*) over () + 1) as share
    from {schema}.consumer c
    cross join lateral (
        select from {schema}.claim_failed f
        where f.consumer = c.id and f.key = $2::text and f.key <> '' and f.id < $1::bigint
        order by f.consumer desc, f.key desc, f.id desc limit 1) newest
    where $3::text is null or c.name = $3
), first as materialized (
    select b.consumer, b.share, f.id
    from branch b
    cross join lateral (
        select f.id from {schema}.claim_failed f
        where f.consumer = b.consumer and f.key = $2 and f.key <> '' and f.id < $1
        order by f.consumer desc, f.key desc, f.id desc limit b.share) f
), back as materialized (
    select coalesce((select id from first order by id desc offset $4 - 1 limit 1), 0) as id
), dense as materialized (
    select f.consumer, min(f.id) as id from first f
    group by f.consumer, f.share
    having count(*) = f.share and min(f.id) > (select id from back)
), newest as (
    select id from (
        select id from first
        union all
        select f.id
        from dense d
        cross join lateral (
            select f.id from {schema}.claim_failed f
            where f.consumer = d.consumer and f.key = $2 and f.key <> '' and f.id > (select id from back) and f.id < d.id
            order by f.consumer desc, f.key desc, f.id desc limit $4) f
    ) f
    order by id desc
    limit $4
)
select id from newest
union
select f.id
from branch b
cross join lateral (
    select f.id from {schema}.claim_failed f
    where f.consumer = b.consumer and f.key = $2 and f.key <> '' and f.id < $1
    order by f.consumer, f.key, f.id limit least(b.share, 100)) f
