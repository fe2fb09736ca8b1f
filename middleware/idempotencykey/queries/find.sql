-- The stored answer. Uses the primary key of each day that the program inserts into the array, because the first request may be of
-- an earlier day. With the days as parameters, the planner would know them too late, and all partitions would be locked.
select fingerprint, status, headers, body from {schema}.idempotency_key where id = $1 and day = any ('{}') limit 1
