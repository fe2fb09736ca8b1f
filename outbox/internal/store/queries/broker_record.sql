-- Where events are published. It has one row, or none. No locks.
select epoch, from_name, to_name, phase, changed_at from {schema}.outbox_broker
