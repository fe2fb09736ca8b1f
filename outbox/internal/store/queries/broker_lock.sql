-- Waits for the processes that are reading the record. Locks nothing but the number.
select pg_advisory_xact_lock(hashtextextended('{schema}.outbox_broker', 0))
