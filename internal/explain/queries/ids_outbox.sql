-- IDs of events that are in the outbox, or are archived: $1 itself, and UUIDs that are like one of the patterns $2, up to $3
-- of them. Reads all of these tables; no locks.
select event_id from (
    select event_id from {schema}.outbox
    union all
    select event_id from {schema}.outbox_failed
    union all
    select event_id from {schema}.outbox_delayed
    union all
    select event_id from {schema}.outbox_archive
) e
where event_id = $1 or (lower(event_id) like any ($2::text[]) and event_id ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
group by event_id order by event_id <> $1, event_id limit $3
