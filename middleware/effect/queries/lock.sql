-- Locks one effect until the transaction ends, and returns the time after the lock was acquired. Only this lock makes keys unique
-- over all days. The settings are local to the transaction. The commit must be durable, even if the role has synchronous_commit =
-- off: a record lost in a crash would repeat the effect. The timeout releases the lock if the process stops in the middle.
select pg_advisory_xact_lock($1),
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       set_config('idle_in_transaction_session_timeout', '10000', true),
       clock_timestamp()
