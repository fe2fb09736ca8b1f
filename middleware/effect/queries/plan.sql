-- Has statements planned for what they are given, because of a listing most is null, and not compiled, which takes longer than to run
-- them. For this transaction alone.
select set_config('plan_cache_mode', 'force_custom_plan', true), set_config('jit', 'off', true)
