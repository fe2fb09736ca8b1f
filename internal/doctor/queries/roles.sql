-- Settings of roles that may use the schema, and of the database, that Millrace would rather not meet, and what undoes them
-- there. From the catalogs; no locks.
select case when r.rolname is null then 'the database' else 'role ' || r.rolname || case when s.setdatabase <> 0 then ' in the database' else '' end end,
       lower(c.setting),
       'alter ' || case when r.rolname is null then '' else format('role %I ', r.rolname) || case when s.setdatabase <> 0 then 'in ' else '' end end
           || case when s.setdatabase <> 0 then format('database %I ', current_database()) else '' end || 'reset ' || split_part(c.setting, '=', 1)
from pg_db_role_setting s
left join pg_roles r on r.oid = s.setrole
cross join lateral unnest(s.setconfig) as c (setting)
where s.setdatabase in (0, (select oid from pg_database where datname = current_database()))
  and (s.setrole = 0 or not r.rolsuper and has_schema_privilege(r.oid, to_regnamespace('{schema}')::oid, 'usage'))
  and (lower(c.setting) ~ '^synchronous_commit=(off|false|no|0|f|n)$' or lower(c.setting) ~ '^default_transaction_read_only=(on|true|yes|1|t|y)$')
order by 1, 2
