-- Tables of the schema that autovacuum is kept from. From the catalog; no locks.
select c.relname::text from pg_class c
where c.relnamespace = to_regnamespace('{schema}') and c.reloptions && array['autovacuum_enabled=false', 'autovacuum_enabled=off', 'autovacuum_enabled=0', 'autovacuum_enabled=no']
order by 1
