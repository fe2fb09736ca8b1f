-- Claims an event of the table: tries the advisory lock. The settings are the same as in claim.sql.
select pg_try_advisory_xact_lock($1::bigint),
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       set_config('idle_in_transaction_session_timeout', $2::text, true)
