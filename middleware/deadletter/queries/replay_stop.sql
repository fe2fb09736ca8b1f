-- Stops a replay that runs, by its primary key.
update {schema}.claim_replay set state = 'stopped', reason = $2, ended_at = clock_timestamp() where id = $1 and state = 'running' returning id
