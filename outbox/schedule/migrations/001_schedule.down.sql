-- Forgets what was fired: schedules begin anew.
drop table {schema}.schedule;
