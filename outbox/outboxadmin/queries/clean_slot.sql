-- Whether the slot can still be read, and whether its reader has confirmed the WAL up to $2. Slots are the server's: one of another
-- database tells nothing of this one's rows. No locks.
select coalesce(wal_status, 'lost') <> 'lost', coalesce(confirmed_flush_lsn >= $2::text::pg_lsn, false)
from pg_catalog.pg_replication_slots where slot_name = $1 and slot_type = 'logical' and database = pg_catalog.current_database()
