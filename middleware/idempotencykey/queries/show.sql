-- The stored answers for a key $1, or whose IDs are like $2. Reads all days, and sorts what it has found, because the index on
-- created_at would lead it through the tables row by row; no locks.
with found as materialized (
    select id, service, scope, key, request, status, created_at, headers, body
    from {schema}.idempotency_key where key = $1 or encode(id, 'hex') like $2
)
select encode(id, 'hex'), service, encode(scope, 'hex'), key, request, status, created_at, length(body), headers, body
from found order by created_at desc limit 100
