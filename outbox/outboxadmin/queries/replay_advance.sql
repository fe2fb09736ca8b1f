-- Records how far a replay is, in the transaction that inserts its events. Locks the replay and its row of the audit.
with audit as (
    update {schema}.outbox_audit set events = events + $2::bigint where id = $1 returning events
), moved as (
    update {schema}.outbox_replay set published_at = $3, created_at = $4, seq = $5, shard = $6 where id = $1
)
select events from audit
