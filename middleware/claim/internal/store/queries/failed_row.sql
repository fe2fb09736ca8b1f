-- The event's row, by the unique index on consumer and record. Locks it, because an operator may change it.
select id, state, attempts from {schema}.claim_failed where consumer = $1::smallint and record = $2::uuid for update
