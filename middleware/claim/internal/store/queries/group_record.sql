-- Records the events that a group has processed, with its commit. Inserts into processed. The locks are held, so a conflict is an
-- error.
insert into {schema}.processed (event_id, consumer)
select record, $2::smallint from unnest($1::uuid[]) as w(record)
