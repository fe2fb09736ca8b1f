-- Records that an operator saw an answer. Inserts only.
insert into {schema}.idempotency_key_audit (actor, action, service, key, request, status, answered_at, note)
values ($1, 'reveal', $2, $3, $4, $5, $6, $7)
