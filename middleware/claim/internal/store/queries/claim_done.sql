-- Deletes the row of a failed event, by the unique index of claim_failed.
delete from {schema}.claim_failed where consumer = $1::smallint and record = $2::uuid
