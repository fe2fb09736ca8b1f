-- Whether an event older than its consumer's floor has its record in its day, which may still exist, or whether an event from the
-- future was settled. Uses the day's primary key. Locks all partitions against being dropped, so only rare events run this.
select exists (select from {schema}.processed where event_id = $1::uuid and consumer = $2::smallint)
    or exists (select from {schema}.processed_ahead where record = $1::uuid and consumer = $2::smallint)
