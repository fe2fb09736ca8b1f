-- Records what an operator did, or begins to do, and to how many events.
insert into {schema}.outbox_audit (actor, action, events, detail) values ($1, $2, $3, $4::jsonb)
returning id
