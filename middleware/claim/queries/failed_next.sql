-- In how many milliseconds the next event is due, by the index on due_at.
select ceil(extract(epoch from min(due_at) - now()) * 1000)::bigint from {schema}.claim_failed
where consumer = (select id from {schema}.consumer where name = $1) and state = 'waiting'
