-- Tries the advisory locks of a group's events. Waits for none of them. The settings are those of a single claim's
-- transaction; and the statement after this one must use the index whatever its plan was made for: on an empty table that
-- was a sequential scan.
select array(select pg_try_advisory_xact_lock(w.key) from unnest($1::bigint[]) with ordinality as w(key, place) order by w.place),
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       set_config('idle_in_transaction_session_timeout', $2::text, true),
       set_config('millrace.enable_seqscan', current_setting('enable_seqscan'), true),
       set_config('enable_seqscan', 'off', true)
