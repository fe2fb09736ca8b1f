-- Locks a replay that has not finished, so that of several programs that continue it one at a time does.
select topic, key, until, to_topic, published_at, created_at, seq, shard from {schema}.outbox_replay where id = $1 for update
