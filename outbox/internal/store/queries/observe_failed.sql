-- The failed events of these shards, counted by state.
select state, count(*) from {schema}.outbox_failed where shard = any($1::smallint[]) group by state
