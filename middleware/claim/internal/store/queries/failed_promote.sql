-- Unblocks the next event of a key, under the lock of the key's row. By the index on keys.
update {schema}.claim_failed set state = 'retrying', due_at = now()
where state = 'blocked' and id = (
    select id from {schema}.claim_failed where consumer = $1::smallint and key = $2 and key <> '' and state <> 'nacked' order by id limit 1)
