-- Which of the keys $3, whose hashes are $2, still have failed events, by the index outbox_failed_key.
select distinct key from {schema}.outbox_failed
where shard = $1::smallint and hash = any($2::bigint[]) and key = any($3::text[]) and state <> 'discarded'
