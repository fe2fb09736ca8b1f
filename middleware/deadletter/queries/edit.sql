-- Changes an event that failed, by claim_failed's primary key.
update {schema}.claim_failed set headers = $2, payload = $3 where id = $1::bigint
