-- What operators did, the last first, by idempotency_key_audit's primary key backwards, from $1 on.
select id, at, actor, action, service, key, request, status, note from {schema}.idempotency_key_audit
where id < $1 order by id desc limit $2::int
