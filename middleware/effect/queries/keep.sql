-- Moves outcomes out of the days before $1 to the current day, if their event has failed and is not settled, such as a dead letter.
-- Reads those days, and claim_failed by its index on events. Locks rows as move.sql does.
update {schema}.effect e set created_at = clock_timestamp()
where e.created_at < $1 and e.event_id <> '' and exists (select from {schema}.claim_failed f where f.event_id = e.event_id)
