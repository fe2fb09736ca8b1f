-- Which transactions are visible now; the server's time; and its start, to notice another server. Needs no table.
select pg_current_snapshot(), clock_timestamp(), pg_postmaster_start_time()
