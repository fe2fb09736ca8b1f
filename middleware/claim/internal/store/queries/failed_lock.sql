-- Waits for the claim's advisory lock: the failed transaction may still be ending. A separate statement, because the next one must
-- see everything that was committed under the lock.
select pg_advisory_xact_lock($1::bigint)
