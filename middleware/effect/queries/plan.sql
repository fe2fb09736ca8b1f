-- Plans statements for their actual arguments, because a listing leaves most of them null, and without JIT, because compiling takes
-- longer than the statement. For this transaction only.
select set_config('plan_cache_mode', 'force_custom_plan', true), set_config('jit', 'off', true)
