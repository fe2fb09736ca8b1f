-- Counts a start of an event that was in flight when a process was killed, by claim_start's primary key. Returns no row if another
-- process was faster. Commits without waiting for the disk, as in start_note.
with quick as materialized (
    select set_config('synchronous_commit', 'off', true)
)
update {schema}.claim_start set run = $3::bigint, starts = starts + 1, noted_at = now()
from quick
where consumer = $1::smallint and record = $2::uuid and run = $4::bigint
returning starts
