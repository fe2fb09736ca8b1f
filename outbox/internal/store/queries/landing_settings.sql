-- What the server says about the log of events: the slot's name; whether the server is a standby; and whether it may remove the log of a
-- slot because that is large, or because nobody reads it. No locks.
select {schema}.outbox_landing_slot(), pg_is_in_recovery(), current_setting('max_slot_wal_keep_size'),
       coalesce(current_setting('idle_replication_slot_timeout', true), '0')
