-- Failed events by state, counted up to $1 rows that hold something up and $1 discarded ones; no locks.
select f.state, count(*), min(f.created_at)
from (
    (select state, created_at from {schema}.outbox_failed where state <> 'discarded' limit $1)
    union all
    (select state, created_at from {schema}.outbox_failed where state = 'discarded' limit $1)
) f
group by f.state
