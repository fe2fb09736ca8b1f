-- The last event that failed, and the server's time less $1 seconds. By claim_failed's primary key.
select coalesce((select max(id) from {schema}.claim_failed), 0), now() - $1::float8 * interval '1 second'
