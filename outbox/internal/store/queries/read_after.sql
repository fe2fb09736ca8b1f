-- The WAL's insert and flush positions: what an earlier statement saw is durable once the flush position has reached this insert
-- position. The server's time, to compute the age of the rows, and its start, to notice another server.
select pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn(), clock_timestamp(), pg_postmaster_start_time()
