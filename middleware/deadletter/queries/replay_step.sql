-- Notes how far a replay is, by its primary key, under the lock of its row: events up to $2 have had their turn, and the next
-- step comes $5 seconds later.
update {schema}.claim_replay
set above = $2, replayed = replayed + $3, in_flight = in_flight + $4, stepped_at = clock_timestamp(),
    due_at = clock_timestamp() + $5::float8 * interval '1 second',
    state = case when $2 >= up_to then 'done' else state end, ended_at = case when $2 >= up_to then clock_timestamp() end
where id = $1
