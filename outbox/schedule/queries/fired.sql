-- Index: schedule_pkey. The row is locked by take.sql.
update {schema}.schedule set due_after = $3, fired_at = now() where service = $1 and name = $2
