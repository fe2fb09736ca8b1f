-- Records that a person saw a response. Inserts only.
insert into {schema}.effect_resolution (action, key, state, before, reason, resolved_by, note) values ('reveal', $1, $2, $2, '', $3, '')
