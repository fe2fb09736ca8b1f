-- Deletes exactly the rows whose publish was acknowledged, by the index outbox_shard_seq; locks those rows. The event ID
-- stands beside the number because sequences may have been set back.
delete from {schema}.outbox o
using unnest($2::bigint[], $3::text[]) as d (seq, event_id)
where o.shard = $1 and o.seq = d.seq and o.event_id = d.event_id
