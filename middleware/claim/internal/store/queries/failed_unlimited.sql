-- Forgets how many events of a key are blocked, and that it was full, because one more is blocked without a limit and is not counted.
-- By the primary key, whose row is locked. Most keys were never counted: then it writes nothing.
update {schema}.claim_key set waiting = null, full_since = null
where consumer = $1::smallint and key = $2 and (waiting is not null or full_since is not null)
