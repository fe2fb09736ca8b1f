-- Has statements read what their limits say, in the order of an index: PostgreSQL expects few rows of a consumer and state, and would read
-- and sort all of them. For this transaction alone.
select set_config(name, 'off', true) from unnest(array['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'enable_incremental_sort']) s (name)
