-- Takes away what another process's success has left, and what the broker has given up, of the next 1,000 events that fail behind
-- $1, by the index on states; then claim_failed_count's many rows become few. Locks what it deletes, and waits for nobody.
-- Answers where it came to; null: there are no more.
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
