-- Clears the mark of an event that the process has survived, by claim_start's primary key.
delete from {schema}.claim_start where consumer = $1::smallint and record = $2::uuid and run = $3::bigint
