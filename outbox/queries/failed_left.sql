-- Which of these keys still have events in the side table, by the index outbox_failed_key.
select distinct key from {schema}.outbox_failed where shard = $1::smallint and key = any($2::text[]) and state <> 'discarded'
