-- Deletes exactly the rows whose publish was acknowledged, by their places; locks those rows. Number and event ID stand
-- beside the place because another row may have it by now.
delete from {schema}.outbox
where ctid = any($1::tid[]) and seq = any($2::bigint[]) and event_id = any($3::text[])
