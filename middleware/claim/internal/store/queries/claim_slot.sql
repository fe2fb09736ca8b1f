-- Takes the first slot that is free, of those whose advisory locks are given, until the end of the transaction. Waits for none, and
-- stops at the first that it gets. Reads no table.
select exists (select from unnest($1::bigint[]) as s(slot) where pg_try_advisory_xact_lock(s.slot))
