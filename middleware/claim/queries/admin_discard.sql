-- Gives events up, by claim_failed's primary key. Their records in processed stay, and absorb what the broker redelivers.
delete from {schema}.claim_failed where id = any ($1::bigint[])
