-- Takes advisory locks until the end of the transaction, in the order of the array. Waits for the holders.
select pg_advisory_xact_lock(k) from unnest($1::bigint[]) as k
