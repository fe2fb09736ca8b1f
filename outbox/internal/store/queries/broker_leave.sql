-- The process has ended, with nothing in flight. Its row stays, because another process must consume what it consumed. Uses the primary
-- key.
update {schema}.outbox_broker_process set expires_at = clock_timestamp() where process_id = $1
