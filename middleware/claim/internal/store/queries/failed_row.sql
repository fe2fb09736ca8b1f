-- The event's row, by the unique index on consumer and record. Locks it: an operator may be at it too.
select id, state, attempts from {schema}.claim_failed where consumer = $1::smallint and record = $2::uuid for update
