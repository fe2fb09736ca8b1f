-- Whether an event that is older than its consumer's floor has its record in its day, which may not be dropped yet, or one from
-- the future was settled. By the day's primary key; all partitions are locked against being dropped, which is why only rare
-- events ask.
select exists (select from {schema}.processed where event_id = $1::uuid and consumer = $2::smallint)
    or exists (select from {schema}.processed_ahead where record = $1::uuid and consumer = $2::smallint)
