-- The rows of a shard up to number $2, at most $3, without those of the topics in $4, by the index outbox_shard_seq. No locks. It walks
-- the dead rows that another session's snapshot keeps.
select seq, event_id
from {schema}.outbox
where shard = $1::smallint and seq <= $2::bigint and topic <> all($4::text[])
order by seq
limit $3::int
