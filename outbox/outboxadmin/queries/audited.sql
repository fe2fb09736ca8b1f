-- What operators did, the last first, by outbox_audit's primary key backwards, from $1 on; and whether it is a replay that has not finished.
select a.id, a.at, a.actor, a.action, a.events, exists (select from {schema}.outbox_replay r where r.id = a.id), a.detail
from {schema}.outbox_audit a
where a.id < $1
order by a.id desc limit $2::int
