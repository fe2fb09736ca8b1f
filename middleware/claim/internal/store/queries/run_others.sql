-- The other processes of the service. Reads all of claim_run, which has one row for each process, and for each process killed
-- within a day. No locks.
select id, beat_at, extract(epoch from clock_timestamp() - beat_at)::float8 from {schema}.claim_run where id <> $1 and service = $2
