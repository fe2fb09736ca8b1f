-- Has a replay that was stopped go on, by its primary key, with another rate or guard where one is given.
update {schema}.claim_replay
set state = 'running', reason = '', ended_at = null, due_at = now(), rate = coalesce($2::int, rate), max_failed = coalesce($3::float8, max_failed)
where id = $1 and state in ('stopped', 'running') returning id
