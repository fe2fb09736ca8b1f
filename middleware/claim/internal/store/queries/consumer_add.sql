-- Gives a consumer its number. Looked up first, because a conflict burns a number too. What others have forgotten by now
-- does not bind it: since tells. It waits while retention sets the floors.
insert into {schema}.consumer (name, since)
select $1, max(floor) from {schema}.consumer
on conflict (name) do update set name = excluded.name
returning id
