-- The last number of each shard's sequence.
select s, coalesce(pg_sequence_last_value(('{schema}.outbox_seq_' || s)::regclass), 0) from unnest($1::smallint[]) as s
