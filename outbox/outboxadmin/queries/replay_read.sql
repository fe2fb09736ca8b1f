-- The next archived events of a replay, in the order in which they were published: at most $9, of $10 bytes in all but at least
-- one, among the next $8 of the archive. By the index outbox_archive_published; no locks. The last row says how far it has
-- read, also where that event is not selected.
with scanned as (
    select published_at, created_at, seq, shard, event_id, topic, key, headers, payload, octet_length(headers) + octet_length(payload) as size,
           topic = coalesce($6::text, topic) and key = coalesce($7::text, key) as selected
    from {schema}.outbox_archive
    where published_at >= $1::timestamptz and published_at < $5::timestamptz
      and (published_at, created_at, seq, shard) > ($1::timestamptz, $2::timestamptz, $3::bigint, $4::smallint)
    order by published_at, created_at, seq, shard
    limit $8::int
), summed as (
    select *, count(*) filter (where selected) over before as events,
           coalesce(sum(size) filter (where selected) over before, 0) - case when selected then size else 0 end as bytes
    from scanned
    window before as (order by published_at, created_at, seq, shard rows unbounded preceding)
), bounded as (
    select *, row_number() over (order by published_at desc, created_at desc, seq desc, shard desc) = 1 as last
    from summed
    where events <= $9::int and (events <= 1 or bytes < $10::bigint)
)
select published_at, created_at, seq, shard, selected, event_id, topic, key, headers, case when selected then payload end
from bounded
where selected or last
order by published_at, created_at, seq, shard
