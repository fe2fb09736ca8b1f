-- An event of the side table failed again. Locks its row.
update {schema}.outbox_failed
set state = $3::text, attempts = $4::int, reason = $5::text, retry_at = case $3::text when 'retry' then now() + $6::int * interval '1 millisecond' end
where shard = $1::smallint and id = $2::bigint
