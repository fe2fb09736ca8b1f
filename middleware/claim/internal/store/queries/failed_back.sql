-- Ends the lease of an event that is not done, unless another process has leased it since. By the primary key.
update {schema}.claim_failed set due_at = now() + $3::bigint * interval '1 millisecond'
where id = $1::bigint and state = 'retrying' and due_at = $2::timestamptz
