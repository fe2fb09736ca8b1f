-- Up to $2 events that were written more than $1 seconds ago, by their places. Reads the table from its beginning, and takes no
-- locks. Places are text because a client would need a type for tid.
select coalesce(array_agg(place), '{}'), array_agg(seq), array_agg(event_id)
from (
    select ctid::text as place, seq, event_id from {schema}.outbox
    where created_at < clock_timestamp() - $1 * interval '1 second' limit $2
) as old
