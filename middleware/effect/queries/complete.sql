-- Locks one effect as lock.sql does, but in a caller's transaction, whose other settings must not change. The commit must be
-- durable: after a crash the sender would not send the outcome again.
select pg_advisory_xact_lock($1),
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       null, clock_timestamp()
