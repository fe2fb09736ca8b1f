-- The oldest transaction that is running: what an older one wrote was committed, or never will be. Until the end of the
-- transaction rows are read in the order of the index outbox_shard_seq, and none that is not asked for: the statistics are
-- those of an empty table, by which reading and sorting a whole shard looks cheaper.
select pg_snapshot_xmin(pg_current_snapshot()), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)
