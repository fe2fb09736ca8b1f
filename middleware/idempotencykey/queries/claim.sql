-- Tries the key's advisory lock, which ends with the transaction. Answers whether it was got, whether today has its
-- partition, and at last the server's time. It reads no table: what is stored is looked up by a statement of its own behind it, because the snapshot of
-- this one is older than the lock, and would miss an answer that was committed in between.
--
-- The settings are local to the transaction. An answer that could be lost in a crash after the client has it would let the
-- request run again: a role's synchronous_commit = off does not hold here. A connection that is half open must not hold
-- the key for hours.
select pg_try_advisory_xact_lock($1),
       to_regclass('{schema}.idempotency_key_' || to_char(now() at time zone 'utc', 'YYYYMMDD')) is not null,
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       set_config('idle_in_transaction_session_timeout', $2::text, true),
       now()
