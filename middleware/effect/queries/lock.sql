-- Begins a look at one effect, which nobody else looks at until the transaction ends: keys are unique over all days by this
-- lock alone. Answers with the time after the lock was got. The settings are local. A record that a crash could undo would
-- repeat the effect: a role's synchronous_commit = off does not hold here. A process that is stopped in between must not
-- hold the key for long.
select pg_advisory_xact_lock($1),
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       set_config('idle_in_transaction_session_timeout', '10000', true),
       clock_timestamp()
