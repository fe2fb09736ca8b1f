-- Ends a replay. Its row of the audit stays.
with gone as (
    delete from {schema}.outbox_replay where id = $1
)
select events from {schema}.outbox_audit where id = $1
