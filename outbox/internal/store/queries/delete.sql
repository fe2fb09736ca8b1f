-- Deletes exactly the rows whose publish was acknowledged, by their places, and counts them; locks those rows. Number and
-- event ID stand beside the place because another row may have it by now; "+ 0" keeps the planner from looking for the
-- numbers in all of the index, dead rows included. The transaction commits without waiting for the
-- disk, because a lost delete is a duplicate; locally, because a setting of the session would leak through a pooler.
with gone as (
    delete from {schema}.outbox
    where ctid = any($1::tid[]) and seq + 0 = any($2::bigint[]) and event_id = any($3::text[])
    returning 1
)
select count(*), set_config('synchronous_commit', 'off', true) from gone
