-- Inserts any number of events in one statement, in the order of the arrays. Writes the index outbox_shard_seq; takes only the locks of
-- an insert. The table's lock is taken before any number and kept to the end of the transaction, so that a reader can tell when every
-- transaction that took a number has ended.
insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload, created_at)
select e.shard, {schema}.outbox_next(e.shard),
       e.event_id, e.topic, e.key, e.headers, e.payload, clock_timestamp()
from (
    select {schema}.outbox_shard_of(u.hash) as shard, u.event_id, u.topic, u.key, u.headers, u.payload
    from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::bytea[])
         as u (hash, event_id, topic, key, headers, payload)
) as e
