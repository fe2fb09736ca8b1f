-- Deletes exactly the rows whose publish was acknowledged, by the index outbox_shard_seq; locks those rows. Event ID and
-- topic stand beside the number because sequences may have been set back.
delete from {schema}.outbox o
using unnest($2::bigint[], $3::text[], $4::text[]) as d (seq, event_id, topic)
where o.shard = $1 and o.seq = d.seq and o.event_id = d.event_id and o.topic = d.topic
