-- Has a replay that is in one of the states $4 go on, by its primary key, with another rate or guard where one is given.
update {schema}.claim_replay
set state = 'running', reason = '', ended_at = null, due_at = now(), rate = coalesce($2::int, rate), max_failed = coalesce($3::float8, max_failed)
where id = $1 and state = any ($4::text[]) returning id
