-- Takes the first free advisory lock of $1, until the transaction ends. Does not wait, and stops at the first one. Reads no table.
select exists (select from unnest($1::bigint[]) as s(slot) where pg_try_advisory_xact_lock(s.slot))
