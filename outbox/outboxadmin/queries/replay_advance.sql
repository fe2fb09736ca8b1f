-- Records how far a replay is, in the transaction that inserts its events, and in how many seconds it may go on. Locks the replay and its
-- row of the audit.
with audit as (
    update {schema}.outbox_audit set events = events + $2::bigint where id = $1 returning events
), moved as (
    update {schema}.outbox_replay
    set published_at = $3, created_at = $4, seq = $5, shard = $6, stepped_at = clock_timestamp(),
        due = greatest(due, now()) + case when rate > 0 then $2::bigint / rate::float8 else 0 end * interval '1 second'
    where id = $1 returning due
)
select events, greatest(extract(epoch from due - clock_timestamp()), 0)::float8 from audit, moved
