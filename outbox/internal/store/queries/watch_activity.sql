-- The databases of this server in which a transaction may have ended since $1, and the server's time and start. A session becomes idle
-- after its transaction has ended, so one that was idle before $1 has ended none since. Without the privileges of pg_read_all_stats, the
-- state of other roles' sessions is null: then each database with a session counts. Sessions with the application name $2 write nothing.
-- Run this before watch_written, in another transaction: a session that ends reports its row counts before it leaves this view.
select array(
           select distinct datname::text from pg_stat_activity
           where datname is not null and pid <> pg_backend_pid() and coalesce(application_name, '') <> $2::text
             and coalesce(backend_type, '') not in ('autovacuum worker', 'walsender')
             and (state is null or state not like 'idle%' or state_change is null or state_change >= $1::timestamptz)),
       statement_timestamp(), pg_postmaster_start_time()
