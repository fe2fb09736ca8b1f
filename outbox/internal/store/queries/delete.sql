-- Deletes exactly the rows whose publish was acknowledged, by their ctids, and counts them. Locks those rows. Number and event ID are
-- compared too, because another row may have the ctid by now; "+ 0" keeps the planner from searching the index for the numbers, dead rows
-- included. The transaction commits without waiting for the disk, because a lost delete only causes a duplicate. The setting is local to
-- the transaction, because a session's setting would leak through a pooler.
with gone as (
    delete from {schema}.outbox
    where ctid = any($1::tid[]) and seq + 0 = any($2::bigint[]) and event_id = any($3::text[])
    returning 1
)
select count(*), set_config('synchronous_commit', 'off', true) from gone
