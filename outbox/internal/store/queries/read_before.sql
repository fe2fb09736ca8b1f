-- The running transactions: one older than all of them has committed, or never will. Until the end of the transaction, rows are read in the order
-- of the index outbox_shard_seq, and no others are read. Without these settings, the statistics of an empty table would make reading and
-- sorting a whole shard look cheaper.
select pg_current_snapshot(), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)
