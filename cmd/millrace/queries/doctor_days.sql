-- Whether a table that is partitioned by day holds anything, whether it has a day for tomorrow, and which its last one is. From
-- the catalogs and the sizes of files; no locks.
select coalesce(bool_or(pg_relation_size(c.oid) > 0), false),
       coalesce(max(right(c.relname, 8)) > to_char(now() at time zone 'UTC', 'YYYYMMDD'), false),
       coalesce(to_char(to_date(max(right(c.relname, 8)), 'YYYYMMDD'), 'YYYY-MM-DD'), 'none')
from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = to_regclass('{schema}.' || $1::text) and c.relname ~ '_[0-9]{8}$'
