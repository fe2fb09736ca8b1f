-- Records that the process is alive, and which of its consumers are paused, by claim_run's primary key. Uses the clock's time,
-- because the transaction may have waited.
update {schema}.claim_run set beat_at = clock_timestamp(), paused = $2 where id = $1
