-- The stored answers whose IDs are from $2 to $3, by the primary key of each day, and those for the key $1 among the last $4
-- answers, by the index on created_at of each day, backwards. No locks.
with found as materialized (
    select id, service, scope, key, request, status, created_at, headers, body
    from {schema}.idempotency_key where id between $2::bytea and $3::bytea
    union
    select id, service, scope, key, request, status, created_at, headers, body
    from (select * from {schema}.idempotency_key order by created_at desc limit $4::int) e where key = $1::text
)
select encode(id, 'hex'), service, encode(scope, 'hex'), key, request, status, created_at, length(body), headers, body
from found order by created_at desc limit 100
