-- One effect, under its advisory lock: the snapshot is younger than the lock. Looks into the primary key of each day.
select created_at, state, token, calls, first_called_at, called_at, until, response, reason, settled_by, settled_at, conflicts
from {schema}.effect where key = $1 order by created_at desc limit 1
