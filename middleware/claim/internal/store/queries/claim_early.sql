-- Records an event from the future, which has run, for its future day: claims on that day would not find its hash.
select {schema}.processed_early($1::uuid, $2::smallint)
