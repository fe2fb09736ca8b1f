-- Records a person's decision, in the transaction that carries it out. Inserts only.
insert into {schema}.effect_resolution (key, state, before, reason, resolved_by, note) values ($1, $2, $3, $4, $5, $6)
