-- Forgets the stored answers: requests that are repeated run again.
drop table {schema}.idempotency_key, {schema}.idempotency_key_retention, {schema}.idempotency_key_audit;
drop function {schema}.idempotency_key_days(int);
