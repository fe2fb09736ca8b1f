-- Index: schedule_pkey. The row is locked by changed.sql. The new expression begins now, so that nothing is due that was not expected.
update {schema}.schedule set expression = $3, time_zone = $4, due_after = greatest(due_after, now()) where service = $1 and name = $2
