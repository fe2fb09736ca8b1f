-- Forgets notes of more than a day ago. Reads all of claim_start, which has a row for each event that a killed process had
-- in hand and that never came again.
delete from {schema}.claim_start where noted_at < now() - interval '1 day'
