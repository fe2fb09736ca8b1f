-- IDs of events that could not be published: $1 itself, and UUIDs that are like one of the patterns $2, up to $3 of them.
-- Reads all of outbox_failed; no locks.
select event_id from {schema}.outbox_failed
where event_id = $1 or (lower(event_id) like any ($2::text[]) and event_id ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
group by event_id order by event_id <> $1, event_id limit $3
