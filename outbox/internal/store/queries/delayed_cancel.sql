-- Deletes a delayed event of the caller that still waits, by the index outbox_delayed_event, and returns how many were deleted. Waits for
-- a relay that is moving it.
select {schema}.outbox_cancel($1::text)
