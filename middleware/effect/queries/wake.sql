-- Makes the event that waits for effect $1 due now. Uses the primary key of effect and the index of claim_failed on events. Skips
-- an event that is being handled: its handler may wait for this transaction, and it is retried without help.
update {schema}.claim_failed set due_at = now()
where id in (
    select f.id from {schema}.claim_failed f
    where f.event_id = (select event_id from {schema}.effect where key = $1 and event_id <> '' order by created_at desc limit 1)
      and f.state = 'retrying' and f.reason = 'retry' and f.due_at > now()
    for update of f skip locked)
