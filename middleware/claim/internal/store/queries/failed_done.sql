-- Deletes an event that was handled. By the primary key.
delete from {schema}.claim_failed where id = $1::bigint
