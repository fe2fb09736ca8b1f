-- Moves what is unsettled out of the days before $1 to the present one, by effect_unsettled. Locks those rows; whoever
-- wrote to one at the same time gets a serialization failure, and looks again.
update {schema}.effect set created_at = clock_timestamp()
where created_at < $1 and (state in ('running', 'pending', 'doubt') or conflicts > 0)
