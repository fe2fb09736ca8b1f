-- Whether any role may put events into the log. From the catalogs; no locks.
select exists (select from pg_proc where proname = 'pg_logical_emit_message' and has_function_privilege('public', oid, 'execute'))
