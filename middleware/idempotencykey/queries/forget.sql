-- Deletes a stored answer and records who did it. Uses the primary key of each day, and locks the row.
with forgotten as (
    delete from {schema}.idempotency_key where id = $1
    returning id, service, scope, key, request, status, created_at, length(body) as bytes
), noted as (
    insert into {schema}.idempotency_key_audit (actor, action, service, key, request, status, answered_at, note)
    select $2, 'forget', service, key, request, status, created_at, $3 from forgotten
)
select encode(id, 'hex'), service, encode(scope, 'hex'), key, request, status, created_at, bytes, null::bytea, null::bytea from forgotten
