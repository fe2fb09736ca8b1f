-- Absorbs what the broker redelivers of an event that is kept here. Inserts into processed: as record $2, or as hash $3
-- where that has no day.
select {schema}.processed_settle($2::uuid, $3::uuid, $1::smallint)
