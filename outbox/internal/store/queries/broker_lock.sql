-- Waits for the processes that are reading the record. Takes only this advisory lock.
select pg_advisory_xact_lock(hashtextextended('{schema}.outbox_broker', 0))
