-- The first event of the key $3, whose hash is $2, that holds up an event that is pending ($4 is null) or blocked; by the index
-- outbox_failed_key. No locks.
select event_id, state from {schema}.outbox_failed
where shard = $1::smallint and hash = $2::bigint and key = $3::text and ($4::bigint is null or id < $4::bigint) and state <> 'discarded'
order by id
limit 1
