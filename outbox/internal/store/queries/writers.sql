-- The transactions that have the outbox open for writing. An insert takes the table's lock before its first number and keeps it to the
-- end of its transaction. Takes the lock manager's partition locks for an instant.
select distinct virtualtransaction from pg_locks
where locktype = 'relation' and database = (select oid from pg_database where datname = current_database())
and relation = '{schema}.outbox'::regclass and mode = 'RowExclusiveLock' and granted
