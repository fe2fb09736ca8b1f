-- The milliseconds until the consumer's next event is due, by the index on due_at, and whether any consumer has a dead letter,
-- which an operator may replay, by the index on state.
select (select ceil(extract(epoch from min(due_at) - now()) * 1000)::bigint from {schema}.claim_failed
        where consumer = (select id from {schema}.consumer where name = $1) and state = 'retrying'),
       exists (select from {schema}.claim_failed where state = 'dead')
