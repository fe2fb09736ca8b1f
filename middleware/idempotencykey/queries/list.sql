-- Stored answers, the latest first, at most $3; of service $1 and of scope $2 if they are given. Uses the index on created_at of
-- each day, backwards. For a service or scope with few answers, it reads further. No locks.
select encode(id, 'hex'), service, encode(scope, 'hex'), key, request, status, created_at, length(body), null::bytea, null::bytea
from {schema}.idempotency_key
where ($1::text = '' or service = $1) and ($2::bytea is null or scope = $2)
order by created_at desc limit $3::int
