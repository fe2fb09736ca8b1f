-- The stored answer, by the primary key of each day: the request that is repeated may be of yesterday.
select fingerprint, status, headers, body from {schema}.idempotency_key where id = $1 limit 1
