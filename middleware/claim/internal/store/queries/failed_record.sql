-- Absorbs what the broker redelivers of an event that is kept here. Inserts into processed.
select {schema}.processed_settle($2::uuid, $3::uuid, $1::smallint)
