-- Archived events, the newest first. Reads the next $9 before the position $5 to $8 that were published from $3 to $4. Returns at most
-- $10 of these, those of topic $1 and key $2, and the last one that was read. By the index outbox_archive_published; no locks.
with searched as (
    select published_at, created_at, seq, shard, event_id, topic, key, topic = coalesce($1::text, topic) and key = coalesce($2::text, key) as selected
    from {schema}.outbox_archive
    where published_at >= coalesce($3::timestamptz, '-infinity') and published_at < coalesce($4::timestamptz, 'infinity') and published_at <= $5::timestamptz
      and (published_at, created_at, seq, shard) < ($5::timestamptz, $6::timestamptz, $7::bigint, $8::smallint)
    order by published_at desc, created_at desc, seq desc, shard desc
    limit $9::int
), numbered as (
    select *, row_number() over before as read, count(*) filter (where selected) over before as events
    from searched
    window before as (order by published_at desc, created_at desc, seq desc, shard desc rows unbounded preceding)
)
select published_at, created_at, seq, shard, event_id, topic, key, selected, read
from numbered
where events <= $10::int and (selected or read = $9::int)
order by read
