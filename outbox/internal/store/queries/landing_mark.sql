-- Moves the marker of server $1 and slot $2 from position $3 to $4; 0/0 clears the position. A transaction that ends behind $4, and of which
-- a part is landed, stays known. A non-empty reason $5 records a cut: the WAL from $3 to $4 is lost, or up to the start of the next slot if $4
-- is 0/0. If an earlier cut is not cleared yet, the two become one. A marker of another server or database is overwritten. Changes nothing if
-- another relay has moved the marker. Locks the row.
insert into {schema}.outbox_landing as m (system, database, server, slot, landed)
select $1::text, oid, pg_postmaster_start_time(), $2::text, nullif($4::pg_lsn, '0/0') from pg_database where datname = current_database()
on conflict (one) do update set
    system = excluded.system, database = excluded.database, server = excluded.server, slot = excluded.slot, landed = excluded.landed, landed_at = now(),
    part_of = case when m.system = excluded.system and m.database = excluded.database and m.part_of >= excluded.landed then m.part_of else '0/0' end,
    part = case when m.system = excluded.system and m.database = excluded.database and m.part_of >= excluded.landed then m.part else 0 end,
    cuts = case when m.system = excluded.system and m.database = excluded.database then m.cuts else 0 end + ($5::text <> '')::int,
    cut_at = case when $5::text <> '' then now() when m.system = excluded.system and m.database = excluded.database then m.cut_at end,
    cut_from = case when m.system = excluded.system and m.database = excluded.database and m.cut_at is not null then m.cut_from when $5::text <> '' then $3::pg_lsn end,
    cut_to = case when $5::text <> '' then excluded.landed when m.system = excluded.system and m.database = excluded.database and m.cut_at is not null then coalesce(m.cut_to, excluded.landed) end,
    cut_reason = concat_ws('; ', case when m.system = excluded.system and m.database = excluded.database and m.cut_at is not null then m.cut_reason end, nullif($5::text, ''))
where m.system <> excluded.system or m.database <> excluded.database or coalesce(m.landed, '0/0') = $3::pg_lsn
