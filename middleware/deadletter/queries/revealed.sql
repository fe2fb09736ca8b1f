-- Notes that an operator saw an event's payload.
insert into {schema}.claim_audit (actor, action, consumer, event_id, detail)
values ($1, 'reveal', $2, $3, jsonb_strip_nulls(jsonb_build_object('note', nullif($4::text, ''))))
