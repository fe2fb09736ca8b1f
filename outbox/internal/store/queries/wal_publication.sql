-- What the publication $1 publishes: whether it exists; whether it has the outbox and inserts; whether it has updates, deletes or
-- truncates. No locks.
select p.oid is not null,
       coalesce(p.pubinsert and exists (select from pg_publication_tables where pubname = p.pubname and format('%I.%I', schemaname, tablename)::regclass = '{schema}.outbox'::regclass), false),
       coalesce(p.pubupdate or p.pubdelete or p.pubtruncate, false)
from (select) as one left join pg_publication p on p.pubname = $1::text
