-- Tries the key's advisory lock, held until the transaction ends. Returns whether it was acquired, whether today has its partition,
-- and last the server's time. It reads no table. A later statement looks for a stored answer: the snapshot of this one is older
-- than the lock, and would miss an answer that was committed in between.
--
-- The settings are local to the transaction. The commit must be durable, even if the role has synchronous_commit = off: if a crash
-- lost an answer that the client has, the request would run again. The timeout keeps a half-open connection from holding the key
-- for hours.
select pg_try_advisory_xact_lock($1),
       to_regclass('{schema}.idempotency_key_' || to_char(now() at time zone 'utc', 'YYYYMMDD')) is not null,
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       set_config('idle_in_transaction_session_timeout', $2::text, true),
       now()
