-- What the errors of the groups of these events have in common, by claim_failed's primary key.
select {schema}.claim_failed_alike(reason, error) from {schema}.claim_failed where id = any ($1::bigint[]) order by array_position($1, id)
