-- Locks events that failed, sorted, by claim_failed's primary key, and passes over those that somebody has in hand: they are
-- locked until the end of their handlers.
select id from {schema}.claim_failed where id = any ($1::bigint[]) and state = any ($2::text[]) order by id for update skip locked
