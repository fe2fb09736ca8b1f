-- Waits for a running step of the migration, and delays the next step until this transaction has ended. So after a step, each process
-- that knows only the step before it is in outbox_broker_process. Takes only this advisory lock.
select pg_advisory_xact_lock_shared(hashtextextended('{schema}.outbox_broker', 0))
