-- Discards pending events of the shard $1 for the reason $5, and adds them to the audit row $6. Locks the rows.
with moved as materialized (
    select {schema}.outbox_discard($1::smallint, $2::bigint[], $3::text[], $4::bigint[], $5::text) as n
), counted as (
    update {schema}.outbox_audit set events = events + (select n from moved) where id = $6::bigint
)
select n from moved
