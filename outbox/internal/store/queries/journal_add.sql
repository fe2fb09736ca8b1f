-- Adds relay $1's counts to its rows of this minute, and deletes some rows that are no longer read, both by outbox_journal's primary key.
-- Locks its own rows, and skips old ones that another relay is deleting.
with dropped as (
    delete from {schema}.outbox_journal where ctid = any (array(
        select ctid from {schema}.outbox_journal where minute < date_trunc('minute', now()) - interval '1 hour' order by minute limit 1000
        for update skip locked))
)
insert into {schema}.outbox_journal as j (minute, topic, relay_id, published, failed)
select date_trunc('minute', now()), n.topic, $1::uuid, sum(n.published), sum(n.failed)
from unnest($2::text[], $3::bigint[], $4::bigint[]) n (topic, published, failed)
group by n.topic
on conflict (minute, topic, relay_id) do update set published = j.published + excluded.published, failed = j.failed + excluded.failed
