-- In how many milliseconds the next event of the consumer is due, by the index on due_at; and whether there is a dead letter of any
-- consumer, which an operator may send back, by the index on state.
select (select ceil(extract(epoch from min(due_at) - now()) * 1000)::bigint from {schema}.claim_failed
        where consumer = (select id from {schema}.consumer where name = $1) and state = 'retrying'),
       exists (select from {schema}.claim_failed where state = 'dead')
