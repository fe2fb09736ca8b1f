-- Gives a consumer its number. Looked up first, because a conflict burns a number too.
insert into {schema}.consumer (name) values ($1)
on conflict (name) do update set name = excluded.name
returning id
