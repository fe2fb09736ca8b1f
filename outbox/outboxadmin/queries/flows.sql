-- What relays did in the last hour, by topic and by relay, of at most $1 rows of outbox_journal, the newest first by its primary key. Where
-- there are more, the oldest minute is left out, of which only a part was read. Without rows it tells the times alone. No locks.
with newest as (
    select * from {schema}.outbox_journal where minute >= date_trunc('minute', now()) - interval '1 hour' order by minute desc limit $1::int
), read as (
    select case when count(*) = $1::int then min(minute) + interval '1 minute' else date_trunc('minute', now()) - interval '1 hour' end as since from newest
)
select now(), r.since, n.topic, n.relay_id::text, n.minute, sum(n.published)::int8, sum(n.failed)::int8
from read r left join newest n on n.minute >= r.since
group by grouping sets ((r.since, n.minute, n.topic), (r.since, n.minute, n.relay_id))
order by n.topic, n.relay_id, n.minute
