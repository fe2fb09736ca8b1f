-- Index: schedule_pkey. Locks the row. A schedule that is new, and one whose expression or time zone has changed, begins now, so
-- that nothing is due that was not expected. $5 is where a schedule goes on whose row was deleted while its process ran.
insert into {schema}.schedule as s (service, name, expression, time_zone, due_after)
values ($1, $2, $3, $4, coalesce($5::timestamptz, now()))
on conflict (service, name) do update
set expression = excluded.expression, time_zone = excluded.time_zone, due_after = greatest(s.due_after, now())
where (s.expression, s.time_zone) <> (excluded.expression, excluded.time_zone)
