-- The days of table $2 in schema $1 (quoted): partitions, those whose detaching was interrupted, and tables of their name
-- that are no partitions any more. <table>_old tells when it ends by the time in the UUIDv7 that is its upper bound. By
-- the catalog's index on names; locks nothing but the catalog. The size is null of
-- a table that has just been dropped.
select c.relname::text,
       case when i.inhrelid is null then 'detached' when i.inhdetachpending then 'pending' else 'attached' end,
       coalesce(pg_total_relation_size(c.oid), 0), greatest(c.reltuples, 0)::bigint,
       to_timestamp(('x' || left(replace(substring(pg_get_expr(c.relpartbound, c.oid) from 'TO \(''([0-9a-f-]{36})''\)'), '-', ''), 12))::bit(48)::bigint / 1000.0)
from pg_class c left join pg_inherits i on i.inhrelid = c.oid
where c.relnamespace = to_regnamespace($1) and c.relkind = 'r' and c.relname ~ ('^' || $2::text || '_([0-9]{8}|old)$')
