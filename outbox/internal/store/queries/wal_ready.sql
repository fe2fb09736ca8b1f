-- Whether the role may read the WAL, and whether a slot is left: the setting wal_level; whether the role may replicate, itself or by a role
-- of a hosted service; whether the slot $1 exists or another can be created; its name; and whether any name is one of a synchronous standby,
-- so that the server would take the reader of the slot for a standby. No locks.
select current_setting('wal_level'),
       (select rolreplication or rolsuper or exists (
            select from pg_roles h where h.rolname in ('rds_replication', 'azure_pg_admin') and pg_has_role(r.oid, h.oid, 'member'))
        from pg_roles r where rolname = current_user),
       exists (select from pg_replication_slots where slot_name = $1::text)
           or (select count(*) from pg_replication_slots) < current_setting('max_replication_slots')::int,
       current_user, current_setting('synchronous_standby_names') ~ '\*'
