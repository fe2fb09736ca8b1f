-- Registers a process. Writes claim_run.
insert into {schema}.claim_run (service, name) values ($1, $2)
returning id
