-- The stored answer, by the primary key of each day that the text names in place of none: the request that is repeated may be of
-- an earlier day. As parameters the days would be known too late, and all partitions would be locked.
select fingerprint, status, headers, body from {schema}.idempotency_key where id = $1 and day = any ('{}') limit 1
