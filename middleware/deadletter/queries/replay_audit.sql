-- Notes what an operator does to a replay.
insert into {schema}.claim_audit (actor, action, consumer, event_id, detail)
values ($2, $3, '', '', jsonb_strip_nulls(jsonb_build_object('replay', $1::bigint, 'note', nullif($4::text, ''))))
