-- Operators' actions, the last first, from $1 backwards. Uses the primary key of idempotency_key_audit.
select id, at, actor, action, service, key, request, status, note from {schema}.idempotency_key_audit
where id < $1 order by id desc limit $2::int
