-- Whether a table that is partitioned by day holds anything, whether it has a day for tomorrow, which its last one is, and which
-- days are missing between its first one and today ('' for none). From the catalogs and the sizes of files; no locks.
select coalesce(bool_or(pg_relation_size(c.oid) > 0), false),
       coalesce(max(right(c.relname, 8)) > to_char(now() at time zone 'UTC', 'YYYYMMDD'), false),
       coalesce(to_char(to_date(max(right(c.relname, 8)), 'YYYYMMDD'), 'YYYY-MM-DD'), 'none'),
       coalesce((select string_agg(to_char(d, 'YYYY-MM-DD'), ', ' order by d)
                 from generate_series(least(to_date(min(right(c.relname, 8)), 'YYYYMMDD'), (now() at time zone 'UTC')::date - $2::int)::timestamp,
                                      (now() at time zone 'UTC')::date, interval '1 day') d
                 where to_char(d, 'YYYYMMDD') <> all (array_agg(right(c.relname, 8)))), '')
from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = to_regclass('{schema}.' || $1::text) and c.relname ~ '_[0-9]{8}$'
