-- One effect. The caller holds its advisory lock, and the snapshot is newer than the lock. Uses the primary key of each day.
select created_at, state, token, calls, first_called_at, called_at, until, response, reason, settled_by, settled_at, conflicts
from {schema}.effect where key = $1 order by created_at desc limit 1
