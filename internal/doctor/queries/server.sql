-- The server's settings that Millrace depends on, as this session has them, and how full it is (the type of others' sessions
-- is shown to members of pg_read_all_stats alone); no locks.
select pg_backend_pid(), pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on', current_setting('fsync') = 'on',
       current_setting('full_page_writes') = 'on', current_setting('autovacuum') = 'on' and current_setting('track_counts') = 'on',
       current_setting('synchronous_commit') = 'off', coalesce(current_setting('millrace.development', true), '') = 'on',
       (select setting::int from pg_settings where name = 'lock_timeout'), (select setting::int from pg_settings where name = 'statement_timeout'),
       (select count(*) from pg_stat_activity where coalesce(backend_type, 'client backend') = 'client backend' and datid is not null), current_setting('max_connections')::int
