-- Events whose headers have the entry $1, at most $3. The outbox and the tables beside it are read from end to end, and so are
-- the days of the archive from $2 on: no index is of use, and one would cost each event that is written. No locks.
select event_id, state, topic, key, headers, created_at, at
from (
    select event_id, 'pending' as state, topic, key, headers, created_at, null::timestamptz as at
    from {schema}.outbox where position($1::bytea in headers) > 0
    union all
    select event_id, state, topic, key, headers, created_at, case state when 'retrying' then retry_at else failed_at end
    from {schema}.outbox_failed where position($1::bytea in headers) > 0
    union all
    select event_id, 'delayed', topic, key, headers, created_at, due_at
    from {schema}.outbox_delayed where position($1::bytea in headers) > 0
    union all
    select event_id, 'archived', topic, key, headers, created_at, published_at
    from {schema}.outbox_archive where published_at >= $2::timestamptz and position($1::bytea in headers) > 0
) o
order by created_at, event_id
limit $3::int
