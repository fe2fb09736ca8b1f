-- Clears the number of blocked events of a key, and that it was full, because one more event is blocked without a limit and without
-- counting. By the primary key; locks the row. Most keys were never counted: then it writes nothing.
update {schema}.claim_key set waiting = null, full_since = null
where consumer = $1::smallint and key = $2 and (waiting is not null or full_since is not null)
