-- The keys of the next $4 failed events of shard $1, ordered by the hash of the key and the event's ID, above $2 and $3. Each row also
-- has the position of the last of these events and their number. Uses the index outbox_failed_key. No locks.
with page as materialized (
    select hash, id, key from {schema}.outbox_failed
    where shard = $1::smallint and (hash, id) > ($2::bigint, $3::bigint) and state <> 'discarded'
    order by hash, id limit $4::int
), last as materialized (
    select hash, id from page order by hash desc, id desc limit 1
)
select k.key, last.hash, last.id, (select count(*)::int from page) from (select distinct key from page) k cross join last
