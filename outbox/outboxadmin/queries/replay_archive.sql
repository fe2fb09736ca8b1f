-- What the archive has: the first and the last publishing, and the topics of the $1 events that were published last. By the
-- index outbox_archive_published; no locks.
select min(published_at), max(published_at), coalesce((
    select array_agg(distinct a.topic) from (select topic from {schema}.outbox_archive order by published_at desc limit $1) a), '{}')
from {schema}.outbox_archive
