-- Before which number events failed first before $1: found by halves, by claim_failed's primary key, because times ascend as numbers do.
-- No locks.
with recursive halves as (
    select coalesce(min(id), 1) - 1 as low, coalesce(max(id), 0) + 1 as high from {schema}.claim_failed
    union all
    select case when early then h.id else low end, case when early then high else middle end
    from (
        select h.low, h.high, h.middle, f.id, coalesce(f.first_at < $1::timestamptz, false) as early
        from (select low, high, (low + high) / 2 as middle from halves where high - low > 1) h
        left join lateral (select id, first_at from {schema}.claim_failed where id >= h.middle order by id limit 1) f on true
    ) h
)
select min(high) from halves
