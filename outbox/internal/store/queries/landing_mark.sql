-- Sets how far events of the server $1, by the slot $2, have been landed: to $4, or to nothing, from $3. If the reason $5 is not empty, the log
-- was cut at $3: up to $4, or until a slot is created. A cut that nobody has cleared grows by it. What was known of another server or database is forgotten. Changes nothing if another
-- relay has landed more. Locks the row.
insert into {schema}.outbox_landing as m (system, database, server, slot, landed)
select $1::text, oid, pg_postmaster_start_time(), $2::text, nullif($4::pg_lsn, '0/0') from pg_database where datname = current_database()
on conflict (one) do update set
    system = excluded.system, database = excluded.database, server = excluded.server, slot = excluded.slot, landed = excluded.landed, part_of = '0/0', part = 0, landed_at = now(),
    cuts = case when m.system = excluded.system and m.database = excluded.database then m.cuts else 0 end + ($5::text <> '')::int,
    cut_at = case when $5::text <> '' then now() when m.system = excluded.system and m.database = excluded.database then m.cut_at end,
    cut_from = case when m.system = excluded.system and m.database = excluded.database and m.cut_at is not null then m.cut_from when $5::text <> '' then $3::pg_lsn end,
    cut_to = case when $5::text <> '' then excluded.landed when m.system = excluded.system and m.database = excluded.database and m.cut_at is not null then coalesce(m.cut_to, excluded.landed) end,
    cut_reason = concat_ws('; ', case when m.system = excluded.system and m.database = excluded.database and m.cut_at is not null then m.cut_reason end, nullif($5::text, ''))
where m.system <> excluded.system or m.database <> excluded.database or coalesce(m.landed, '0/0') = $3::pg_lsn
