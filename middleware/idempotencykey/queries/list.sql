-- Stored answers, the latest first, of a service $1 and a scope $2 if they are given, at most $3. By the index on created_at of each day, from its end;
-- a service or a scope that has few answers reads on. No locks.
select encode(id, 'hex'), service, encode(scope, 'hex'), key, request, status, created_at, length(body), null::bytea, null::bytea
from {schema}.idempotency_key
where ($1::text = '' or service = $1) and ($2::bytea is null or scope = $2)
order by created_at desc limit $3::int
