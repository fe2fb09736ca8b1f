-- Who has stopped a replay; '' for nobody. By the primary key; no locks.
select coalesce((select stopped_by from {schema}.outbox_replay where id = $1), '')
