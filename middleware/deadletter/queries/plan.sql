-- Has statements planned for what they are given: of a selection most is null. For this transaction alone.
select set_config('plan_cache_mode', 'force_custom_plan', true)
