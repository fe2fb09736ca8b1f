-- Forgets the stored answers: requests that are repeated run again.
drop table {schema}.idempotency_key;
drop function {schema}.idempotency_key_days(int);
