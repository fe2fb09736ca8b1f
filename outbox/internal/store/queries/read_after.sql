-- How far the log is written and how far it is on disk: what a statement before this one saw is durable once the second has
-- reached the first. The server's time, to tell the age of what was read, and its start, to tell that it is another one.
select pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn(), clock_timestamp(), pg_postmaster_start_time()
