-- The oldest transaction that is running: what an older one wrote was committed, or never will be.
select pg_snapshot_xmin(pg_current_snapshot())
