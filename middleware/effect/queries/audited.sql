-- What people decided, the last first, by effect_resolution's primary key backwards, from $1 on.
select id, resolved_at, resolved_by, key, state, before, reason, note from {schema}.effect_resolution
where id < $1 order by id desc limit $2::int
