-- Locks the row of a blocked key, if there is one.
select true from {schema}.claim_key where consumer = $1::smallint and key = $2 for update
