-- The number of connections that the server allows this role, and the PID of the backend. Reads catalogs; takes no locks.
select pg_backend_pid(), least(
    current_setting('max_connections')::int
        - case when r.rolsuper then 0 else current_setting('superuser_reserved_connections')::int
            + coalesce(current_setting('reserved_connections', true)::int, 0) end,
    case when r.rolconnlimit >= 0 and not r.rolsuper then r.rolconnlimit end,
    case when d.datconnlimit >= 0 and not r.rolsuper then d.datconnlimit end)
from pg_roles r, pg_database d
where r.rolname = session_user and d.datname = current_database()
