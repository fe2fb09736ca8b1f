-- Records an event from the future, which has run, for the day that is to come: its hash alone would not be looked at there.
select {schema}.processed_early($1::uuid, $2::smallint)
