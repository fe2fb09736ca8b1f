-- How many events are delayed, counted up to $1, and when the next is due, by the index outbox_delayed_due; no locks.
select count(*), min(d.due_at), clock_timestamp()
from (select due_at from {schema}.outbox_delayed order by due_at limit $1) d
