-- The stored answers for a key $1, or whose IDs are like $2. Reads all days; no locks.
select encode(id, 'hex'), service, encode(scope, 'hex'), key, request, status, created_at, length(body), headers, body
from {schema}.idempotency_key where key = $1 or encode(id, 'hex') like $2
order by created_at desc limit 100
