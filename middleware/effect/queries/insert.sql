-- A first intent. The caller holds the effect's advisory lock. Writes the indexes of the current day.
insert into {schema}.effect (key, created_at, state, token, calls, first_called_at, called_at, until, response, reason,
       settled_by, settled_at, conflicts, event_id)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
