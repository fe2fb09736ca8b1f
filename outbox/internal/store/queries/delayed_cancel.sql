-- Deletes a delayed event of the caller's that still waits, by the index outbox_delayed_event, and answers how many that were.
-- Waits for a relay that is moving it.
select {schema}.outbox_cancel($1::text)
