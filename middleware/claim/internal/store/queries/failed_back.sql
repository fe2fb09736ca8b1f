-- Gives an event back that was leased and is not done, unless somebody else has it by now. By the primary key.
update {schema}.claim_failed set due_at = now() + $3::bigint * interval '1 millisecond'
where id = $1::bigint and state = 'retrying' and due_at = $2::timestamptz
