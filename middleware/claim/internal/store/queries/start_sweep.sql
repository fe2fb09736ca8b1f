-- Deletes marks older than a day. Reads all of claim_start, which has one row for each event that was in flight in a killed process
-- and has not come again.
delete from {schema}.claim_start where noted_at < now() - interval '1 day'
