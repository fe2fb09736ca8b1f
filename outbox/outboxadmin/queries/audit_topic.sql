-- Records what an operator did to a topic.
insert into {schema}.outbox_audit (actor, action, events, detail)
values ($1, $2, $3, jsonb_strip_nulls(jsonb_build_object('note', nullif($4::text, ''), 'topic', $5::text, 'to', nullif($6::text, ''))))
