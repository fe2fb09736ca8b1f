-- Deletes processes that were killed more than a day ago. Reads all of claim_run, which is small.
delete from {schema}.claim_run where beat_at < now() - interval '1 day'
