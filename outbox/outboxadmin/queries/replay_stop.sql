-- Stops a replay that has not finished. Locks it.
update {schema}.outbox_replay set stopped_by = $2 where id = $1 and stopped_by is null
