-- Which of the numbers $2 a shard has, in the outbox or among its failed events, in one snapshot; without locks. By the indexes
-- outbox_shard_seq and outbox_failed_key: of the latter it walks the shard's failed events. Discarded ones count: they may be retried.
select seq, event_id from {schema}.outbox where shard = $1::smallint and seq = any($2::bigint[])
union all
select seq, event_id from {schema}.outbox_failed where shard = $1::smallint and seq = any($2::bigint[])
