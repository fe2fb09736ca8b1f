-- Stores an answer in the day on which its transaction began. Writes two indexes, the second one at its end. Sent together with
-- COMMIT.
insert into {schema}.idempotency_key (id, service, scope, key, request, fingerprint, status, headers, body)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
