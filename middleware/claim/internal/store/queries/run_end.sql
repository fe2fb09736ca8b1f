-- Removes a process that has stopped cleanly. By claim_run's primary key.
delete from {schema}.claim_run where id = $1
