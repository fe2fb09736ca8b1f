-- Waits for the claim's advisory lock: the transaction that failed may be on its way out still. A statement of its own,
-- because the next one must see what was committed under it.
select pg_advisory_xact_lock($1::bigint)
