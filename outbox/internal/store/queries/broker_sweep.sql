-- Forgets processes that ended more than a day ago. Reads all of outbox_broker_process, which is small.
delete from {schema}.outbox_broker_process where expires_at < now() - interval '1 day'
