-- Makes the event $1, which waits for an effect, due now. Uses the index of claim_failed on events. Skips an event that is being
-- handled: its handler may wait for this transaction, and it is retried without help.
update {schema}.claim_failed set due_at = now()
where id in (
    select f.id from {schema}.claim_failed f
    where f.event_id = $1 and f.state = 'retrying' and f.reason = 'retry' and f.due_at > now()
    for update of f skip locked)
