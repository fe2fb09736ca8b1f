-- Consumers that are paused in live processes. Reads all of claim_run, which has one row for each process, and for each process
-- killed within a day. No locks.
select p.consumer, r.beat_at - p.seconds * interval '1 second', r.beat_at + coalesce(p."left", 0) * interval '1 second', p.error, r.name
from {schema}.claim_run r, jsonb_to_recordset(r.paused) as p(consumer text, seconds float8, "left" float8, error text)
where r.beat_at > clock_timestamp() - $1::float8 * interval '1 second'
order by 1, 2
