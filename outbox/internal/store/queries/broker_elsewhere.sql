-- The migration to another broker, unless its phase publishes to broker $1: one row, or none. No locks.
select from_name, to_name, phase from {schema}.outbox_broker
where not (phase = 'consume' and from_name = $1::text or phase in ('publish', 'cut') and to_name = $1::text)
