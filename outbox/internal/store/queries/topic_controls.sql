-- Operators' settings for topics. The time of a pause, in microseconds, identifies it. No locks.
select topic, coalesce((extract(epoch from paused_at) * 1000000)::bigint, 0), coalesce(redirect_to, '') from {schema}.outbox_topic
