-- People's decisions, the last first, from $1 backwards. Uses the primary key of effect_resolution.
select id, resolved_at, resolved_by, action, key, state, before, reason, note from {schema}.effect_resolution
where id < $1 order by id desc limit $2::int
