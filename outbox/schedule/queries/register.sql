-- Index: schedule_pkey. Locks the row that it inserts. A schedule that is new begins now, so that nothing is due that was not
-- expected. $5 is where a schedule goes on whose row was deleted while its process ran.
insert into {schema}.schedule (service, name, expression, time_zone, due_after)
values ($1, $2, $3, $4, coalesce($5::timestamptz, now()))
on conflict (service, name) do nothing
