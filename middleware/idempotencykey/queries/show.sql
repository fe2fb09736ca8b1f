-- The stored answers for the key $1, and those whose IDs match $2. Reads all days, and sorts only the result: with the index on
-- created_at, it would read the tables row by row. No locks.
with found as materialized (
    select id, service, scope, key, request, status, created_at, headers, body
    from {schema}.idempotency_key where key = $1 or encode(id, 'hex') like $2
)
select encode(id, 'hex'), service, encode(scope, 'hex'), key, request, status, created_at, length(body), headers, body
from found order by created_at desc limit 100
