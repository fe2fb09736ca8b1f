-- What delete.sql is for rows that were no longer at their places (VACUUM FULL), by the index outbox_shard_seq.
delete from {schema}.outbox o
using unnest($1::smallint[], $2::bigint[], $3::text[]) as d (shard, seq, event_id)
where o.shard = d.shard and o.seq = d.seq and o.event_id = d.event_id
