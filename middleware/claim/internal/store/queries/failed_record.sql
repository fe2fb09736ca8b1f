-- Records an event that is kept here, so that redeliveries by the broker are duplicates. Inserts into processed.
select {schema}.processed_settle($2::uuid, $3::uuid, $1::smallint)
