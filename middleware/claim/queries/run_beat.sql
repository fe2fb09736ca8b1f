-- Says that the process lives, by claim_run's primary key. The clock's time, not the transaction's, which may have waited.
update {schema}.claim_run set beat_at = clock_timestamp() where id = $1
