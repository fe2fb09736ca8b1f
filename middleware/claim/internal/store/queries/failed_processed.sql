-- Whether the event is settled, by the primary key of processed. Its record is $2, or the hash $3 if it has no day.
select exists (select from {schema}.processed where event_id in ($2::uuid, $3::uuid) and consumer = $1::smallint)
