-- Records what an operator did to a topic, or begins to do.
insert into {schema}.outbox_audit (actor, action, events, detail)
values ($1, $2, 0, jsonb_strip_nulls(jsonb_build_object('note', nullif($3::text, ''), 'topic', $4::text, 'to', nullif($5::text, ''), 'until', $6::timestamptz)))
returning id
