-- Index: schedule_pkey. Locks the row.
delete from {schema}.schedule where service = $1 and name = $2
