-- Begins a replay that keeps a pace.
insert into {schema}.claim_replay (actor, note, selection, rate, max_failed, up_to, selected)
values ($1, $2, $3, $4, $5, $6, $7) returning id
