-- An event of the side table failed again. Locks its row.
update {schema}.outbox_failed
set state = $2::text, attempts = $3::int, reason = $4::text, retry_at = case $2::text when 'retrying' then now() + $5::int * interval '1 millisecond' end
where id = $1::bigint
