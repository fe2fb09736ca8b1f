-- Deletes a delayed event that still waits, by the index outbox_delayed_event. Waits for a relay that is moving it.
delete from {schema}.outbox_delayed where event_id = $1
