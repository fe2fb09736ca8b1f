-- Makes the next statement use the index. Otherwise, it might use the plan for an empty table, a sequential scan.
select set_config('enable_seqscan', 'off', true)
