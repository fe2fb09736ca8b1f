-- The statement after this one must use the index whatever its plan was made for: on an empty table that was a sequential
-- scan.
select set_config('enable_seqscan', 'off', true)
