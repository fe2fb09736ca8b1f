-- Says that the process lives, and which of its consumers are paused, by claim_run's primary key. The clock's time, not the
-- transaction's, which may have waited.
update {schema}.claim_run set beat_at = clock_timestamp(), paused = $2 where id = $1
