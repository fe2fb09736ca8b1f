-- Of the events $2 the last $3 that failed before $1, by the index on events. No locks.
select id from {schema}.claim_failed
where event_id = any ($2::text[]) and id < $1::bigint
order by id desc
limit $3::int
