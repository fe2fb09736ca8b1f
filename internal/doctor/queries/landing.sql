-- Settings with which the server may lose a slot that keeps events: their names, values, what they should be, and the slots of standbys. No
-- locks.
select name, current_setting(name), wanted, coalesce(array(select slot_name::text from pg_replication_slots where slot_type = 'physical' order by slot_name), '{}')
from (values ('max_slot_wal_keep_size', '-1'), ('idle_replication_slot_timeout', '0'), ('synchronized_standby_slots', null)) as v (name, wanted)
join pg_settings using (name)
where case name when 'synchronized_standby_slots' then setting = '' else setting <> wanted end
