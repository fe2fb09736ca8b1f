-- Takes away what another process's success has left, and what the broker has given up. Reads the table; locks what it
-- deletes, and waits for nobody.
delete from {schema}.claim_failed where id in (
    select f.id from {schema}.claim_failed f
    where f.state = 'failing' and (f.failed_at < now() - interval '30 days'
        or exists (select from {schema}.processed p where p.event_id = f.record and p.consumer = f.consumer))
    limit 1000 for update skip locked)
