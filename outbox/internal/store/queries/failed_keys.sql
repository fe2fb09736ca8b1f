-- The keys of the next $4 failed events of the shard $1, in the order of the hashes of the keys and of the events, above $2 and $3. With
-- each key come the place of the last of these events, and how many they are. By the index outbox_failed_key, without locks.
with page as materialized (
    select hash, id, key from {schema}.outbox_failed
    where shard = $1::smallint and (hash, id) > ($2::bigint, $3::bigint) and state <> 'discarded'
    order by hash, id limit $4::int
), last as materialized (
    select hash, id from page order by hash desc, id desc limit 1
)
select k.key, last.hash, last.id, (select count(*)::int from page) from (select distinct key from page) k cross join last
