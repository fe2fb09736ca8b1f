-- Moves outcomes that an event which failed and is not settled needs, as a dead letter does, out of the days before $1 to the
-- present one. Reads those days, and claim_failed by its index on events. Locks rows as move.sql does.
update {schema}.effect e set created_at = clock_timestamp()
where e.created_at < $1 and e.event_id <> '' and exists (select from {schema}.claim_failed f where f.event_id = e.event_id)
