-- Deletes 1,000 hashes older than $1, by the index on claimed_at. Locks those rows: a claim of one waits for the commit.
delete from {schema}.processed_hashed
where ctid = any (array(select ctid from {schema}.processed_hashed where claimed_at < $1 order by claimed_at limit 1000))
