-- Registers a process. Writes claim_run.
insert into {schema}.claim_run (name) values ($1)
returning id
