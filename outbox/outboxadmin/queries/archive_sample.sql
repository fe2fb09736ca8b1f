-- How many of the newest $5 archived events that were published from $3 to $4, where those are given, are of topic $1 and key $2, by
-- topic; and how many are not. By the index outbox_archive_published; no locks.
with searched as (
    select topic, published_at, topic = coalesce($1::text, topic) and key = coalesce($2::text, key) as selected
    from {schema}.outbox_archive
    where published_at >= coalesce($3::timestamptz, '-infinity') and published_at < coalesce($4::timestamptz, 'infinity')
    order by published_at desc
    limit $5::int
)
select case when selected then topic else '' end, selected, count(*), min(published_at), max(published_at)
from searched
group by 1, 2
order by 1, 2
