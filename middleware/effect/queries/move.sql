-- Moves unsettled effects out of the days before $1 to the current day. Uses effect_unsettled and locks those rows. A concurrent
-- writer of such a row gets a serialization failure, and looks again.
update {schema}.effect set created_at = clock_timestamp()
where created_at < $1 and (state in ('running', 'pending', 'doubt') or conflicts > 0)
