-- Index: schedule_pkey. Locks the row if its expression or time zone is another one: then it waits for a process that fires.
select expression, time_zone, due_after, now() from {schema}.schedule
where service = $1 and name = $2 and (expression, time_zone) <> ($3, $4)
for update
