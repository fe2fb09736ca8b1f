-- What has held back the cleaning of dead rows for longer than $1 seconds: transactions, prepared ones, and replication slots
-- without a reader other than those of log.sql, and those that keep events in the log (of any schema), in the whole cluster; what ends it, in which database where that is another. From the statistics; no locks.
select format('session %s of %s (%s), %s', pid, usename, coalesce(nullif(application_name, ''), 'no name'), coalesce(state, '')),
       extract(epoch from clock_timestamp() - xact_start)::float8, null::text, format('select pg_terminate_backend(%s)', pid), ''
from pg_stat_activity
where xact_start < clock_timestamp() - $1::float8 * interval '1 second' and (backend_xmin is not null or backend_xid is not null)
  and backend_type = 'client backend' and pid <> pg_backend_pid()
union all
select format('prepared transaction %s of %s', quote_literal(gid), owner), extract(epoch from clock_timestamp() - prepared)::float8,
       nullif(database::text, current_database()::text), format('rollback prepared %s', quote_literal(gid)), ', if its coordinator is gone'
from pg_prepared_xacts where prepared < clock_timestamp() - $1::float8 * interval '1 second'
union all
select format('replication slot %s, which nobody reads', slot_name), null, null, format('select pg_drop_replication_slot(%s)', quote_literal(slot_name)),
       ', if its reader is gone for good'
from pg_replication_slots where not active and (xmin is not null or catalog_xmin is not null)
and not coalesce(plugin = 'pgoutput' and (slot_name like '%\_log\_' || datoid
    or database = current_database() and slot_name ~ ('^' || left($2::text, 40) || '_outbox_[0-9a-f]{8}$')), false)
order by 2 desc nulls last
limit 10
