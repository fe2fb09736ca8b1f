-- Absorbs what the broker redelivers of an event that is kept here. Inserts into processed.
insert into {schema}.processed (event_id, consumer) select r, $1::smallint from (values ($2::uuid, $3::uuid)) v(r, h) on conflict do nothing
