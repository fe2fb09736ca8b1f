-- How far events have been landed: whether that is known for the server with the system identifier $1 and this database; up to where; the
-- commit of the transaction that is landed in parts; how many of its messages; when the server started at which a relay created
-- the slot or began to; when this one did; when the marker was last advanced; and whether there is one of another server or database. No locks.
select m.system is not null, coalesce(m.landed, '0/0'), coalesce(m.part_of, '0/0'), coalesce(m.part, 0),
       coalesce(m.server, pg_postmaster_start_time()), pg_postmaster_start_time(),
       coalesce(m.landed_at, clock_timestamp()), m.system is null and exists (select from {schema}.outbox_landing)
from (select) as one
left join {schema}.outbox_landing m on m.system = $1::text and m.database = (select oid from pg_database where datname = current_database())
