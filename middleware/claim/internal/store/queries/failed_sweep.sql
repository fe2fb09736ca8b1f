-- Deletes rows of events that have succeeded in another process, or that the broker has given up, of the next 1,000 nacked events
-- after $1, by the index on states. Then folds the rows of claim_failed_count. Locks what it deletes, and waits for nobody. Returns
-- where it stopped; null: there are no more.
with next as materialized (
    select id, record, consumer, failed_at from {schema}.claim_failed
    where state = 'nacked' and failed_at > $1::timestamptz order by failed_at limit 1000
), gone as (
    delete from {schema}.claim_failed where id in (
        select f.id from {schema}.claim_failed f join next n using (id)
        where f.state = 'nacked' and (f.failed_at < now() - interval '30 days'
            or exists (select from {schema}.processed p where p.event_id = n.record and p.consumer = n.consumer))
        for update of f skip locked)
)
select case count(*) when 1000 then max(failed_at) end, {schema}.claim_failed_fold() from next
