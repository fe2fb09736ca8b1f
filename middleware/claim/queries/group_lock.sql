-- Tries the advisory locks of a group's events. Waits for none of them. The settings are those of a single claim's
-- transaction.
select array(select pg_try_advisory_xact_lock(w.key) from unnest($1::bigint[]) with ordinality as w(key, place) order by w.place),
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       set_config('idle_in_transaction_session_timeout', $2::text, true)
