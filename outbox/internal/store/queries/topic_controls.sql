-- What operators have set for topics; no locks.
select topic, paused_at is not null from {schema}.outbox_topic
