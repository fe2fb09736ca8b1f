-- One effect, in the days that the program writes in place of the two bounds. The caller holds its advisory lock, and the snapshot is newer
-- than the lock. Uses the primary key of each of these days. With the bounds as parameters, the planner would know them too late, and
-- all partitions would be locked.
select created_at, state, token, calls, first_called_at, called_at, until, response, reason, settled_by, settled_at, conflicts, event_id
from {schema}.effect where key = $1 and created_at >= '-infinity' and created_at < 'infinity' order by created_at desc limit 1
