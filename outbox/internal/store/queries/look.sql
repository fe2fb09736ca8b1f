-- Which of the numbers $2 of a shard exist, in the outbox or among its failed events, in one snapshot. No locks. Uses the indexes
-- outbox_shard_seq and outbox_failed_key, of which it walks all failed events of the shard. Discarded events count, because they may be
-- retried.
select seq, event_id from {schema}.outbox where shard = $1::smallint and seq = any($2::bigint[])
union all
select seq, event_id from {schema}.outbox_failed where shard = $1::smallint and seq = any($2::bigint[])
