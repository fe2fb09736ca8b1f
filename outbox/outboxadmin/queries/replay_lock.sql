-- Locks a replay that has not finished, so that of several programs that continue it one at a time does. It may go on in so many seconds.
select topic, key, until, to_topic, published_at, created_at, seq, shard, rate, extract(epoch from due - clock_timestamp())::float8, coalesce(stopped_by, '')
from {schema}.outbox_replay where id = $1 for update
