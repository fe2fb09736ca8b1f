-- A process has ended and leaves nothing half done. By claim_run's primary key.
delete from {schema}.claim_run where id = $1
