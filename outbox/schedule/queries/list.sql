-- Reads the whole table, which has a row for each schedule. Takes no locks.
select service, name, expression, time_zone, due_after, fired_at, now() from {schema}.schedule order by service, name
