-- Lets a replay go on, at another rate, and says whether it was stopped; if $3, only one that runs. Locks it.
with was as (
    select id, stopped_by from {schema}.outbox_replay where id = $1 and (not $3::boolean or stopped_by is null) for update
)
update {schema}.outbox_replay r set stopped_by = null, rate = $2, due = least(due, now() + interval '1 second')
from was where r.id = was.id
returning was.stopped_by is not null
