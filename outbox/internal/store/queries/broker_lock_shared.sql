-- Waits for a step of the migration that is being made, and delays the next one until this transaction has ended. So when a step has
-- been made, each process that knows only the one before stands in outbox_broker_process. Locks nothing but the number.
select pg_advisory_xact_lock_shared(hashtextextended('{schema}.outbox_broker', 0))
