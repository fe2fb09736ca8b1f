-- Failed events by state, counted up to $1 of each, by the index on states; no locks.
select s.state, f.n
from unnest(array['retrying', 'blocked', 'dead', 'discarded']) as s (state)
cross join lateral (
    select count(*) as n
    from (select from {schema}.outbox_failed f where f.state <= s.state and (f.state, f.id) >= (s.state, 0::bigint) order by f.state, f.id limit $1) l
) f
where f.n > 0
