-- Locks the row of a key that is held up, if it is.
select true from {schema}.claim_key where consumer = $1::smallint and key = $2 for update
