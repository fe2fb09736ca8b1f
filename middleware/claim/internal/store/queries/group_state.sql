-- What functions may have left in this transaction: the values of these settings and, with $2, its temporary tables and cursors.
-- Reads pg_class for the tables.
select array(select coalesce(current_setting(w.name, true), '') from unnest($1::text[]) with ordinality as w(name, place) order by w.place)
    || case when $2::boolean then array(select c.oid::text from pg_class c where c.relnamespace = pg_my_temp_schema() order by 1)
                               || array(select c.name from pg_cursors c where c.name <> '' order by 1) end
