-- Archived events by topic: of topic $1 and key $2 where those are given, published from $3 to $4 where those are given. By
-- the index outbox_archive_published; no locks.
select topic, count(*), sum(octet_length(headers) + octet_length(payload)), min(published_at), max(published_at)
from {schema}.outbox_archive
where topic = coalesce($1::text, topic) and key = coalesce($2::text, key)
  and published_at >= coalesce($3::timestamptz, '-infinity') and published_at < coalesce($4::timestamptz, 'infinity')
group by topic
order by topic
