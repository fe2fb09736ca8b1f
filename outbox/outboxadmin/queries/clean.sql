-- Deletes exactly these events, by their places; locks those rows. Number and event ID stand beside the place because another
-- row may have it by now; "+ 0" keeps the planner from looking for the numbers in the index.
delete from {schema}.outbox
where ctid = any($1::text[]::tid[]) and seq + 0 = any($2::bigint[]) and event_id = any($3::text[])
