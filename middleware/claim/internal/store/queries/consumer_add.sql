-- Registers a consumer. consumer_find runs first, because a conflict uses up a number. Rows that retention has dropped for other
-- consumers do not limit the new one: since tells. Waits while retention raises the floors.
insert into {schema}.consumer (name, since)
select $1, max(floor) from {schema}.consumer
on conflict (name) do update set name = excluded.name
returning id
