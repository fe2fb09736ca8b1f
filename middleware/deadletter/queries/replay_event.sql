-- Notes which events a replay has had tried again.
insert into {schema}.claim_replay_event (id, replay) select unnest($1::bigint[]), $2::bigint
