-- What landing must know of the server: the slot's name; whether the server is a standby; and whether it may remove the WAL of a slot
-- because that is large, or because nobody reads it. No locks.
select {schema}.outbox_landing_slot(), pg_is_in_recovery(), current_setting('max_slot_wal_keep_size'),
       coalesce(current_setting('idle_replication_slot_timeout', true), '0')
