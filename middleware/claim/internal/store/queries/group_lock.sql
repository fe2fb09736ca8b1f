-- Tries the advisory locks of a group's events, without waiting. The settings are the same as in claim.sql. In addition, the next
-- statement must use the index: otherwise, it might use the plan for an empty table, a sequential scan.
select array(select pg_try_advisory_xact_lock(w.key) from unnest($1::bigint[]) with ordinality as w(key, place) order by w.place),
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       set_config('idle_in_transaction_session_timeout', $2::text, true),
       set_config('millrace.enable_seqscan', current_setting('enable_seqscan'), true),
       set_config('enable_seqscan', 'off', true)
