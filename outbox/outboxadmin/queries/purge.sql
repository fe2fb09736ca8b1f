-- Deletes up to 10,000 discarded events that failed more than $1 seconds ago, except those that are to be retried. Locks them.
delete from {schema}.outbox_failed where id in (
    select id from {schema}.outbox_failed
    where state = 'discarded' and command is null and failed_at < now() - $1 * interval '1 second'
    order by id limit 10000 for update skip locked)
