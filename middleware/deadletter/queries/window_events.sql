-- Of the events $2 the last $3 that failed before $1, by the index on events: one for each consumer. They are sorted, or PostgreSQL would
-- look for them in the order of the primary key, row by row. No locks.
with found as materialized (
    select id from {schema}.claim_failed where event_id = any ($2::text[]) and id < $1::bigint
)
select id from found
order by id desc
limit $3::int
