-- A topic that is paused, if there is one; no locks.
select coalesce(min(topic), '') from {schema}.outbox_topic where paused_at is not null
