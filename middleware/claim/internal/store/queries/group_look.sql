-- Returns, for a group's events:
--
-- Which were processed before, by the primary key of processed, in the days that the program inserts for the first block comment.
-- With the days as parameters, the planner would know them too late, and all days would be locked. The statement runs after the
-- locks were acquired, with its own snapshot, so nobody can add a record in between.
--
-- Which must be claimed alone: those that have failed before and those of a blocked key, by the unique indexes of claim_failed and
-- claim_key, and those whose day ($5, null if there is none) may be dropped or not exist yet.
--
-- Whether the consumer's number still belongs to its name ($3).
--
-- The statement that defers the database's constraints again after a check of all of them: null if none is deferrable, '' if all are
-- initially immediate. A name shared with a constraint that is not deferrable is left out, because it cannot be deferred.
--
-- (Without OFFSET, the planner might hash a whole table.)
select array(select exists (select from {schema}.processed p where p.event_id = w.record and p.consumer = $2::smallint and /*days*/ true offset 0)
             from unnest($1::uuid[]) with ordinality as w(record, place) order by w.place),
       array(select exists (select from {schema}.claim_failed f where f.consumer = $2::smallint and f.record = w.record offset 0)
                 or w.key <> '' and exists (select from {schema}.claim_key k where k.consumer = $2::smallint and k.key = w.key offset 0)
                 or coalesce(w.minted > now() + interval '1 day' or w.minted < (
                        select greatest(c.floor, c.since) from {schema}.consumer c where c.id = $2::smallint), false)
             from unnest($1::uuid[], $4::text[], $5::timestamptz[]) with ordinality as w(record, key, minted, place) order by w.place),
       exists (select from {schema}.consumer where id = $2::smallint and name = $3::text),
       (select coalesce('set constraints ' || string_agg(distinct format('%I.%I', n.nspname, c.conname), ', ')
                        filter (where c.condeferred and has_schema_privilege(n.oid, 'usage') and not exists (
                            select from pg_constraint s
                            where s.conname = c.conname and s.connamespace = c.connamespace and not s.condeferrable))
                        || ' deferred', '')
        from pg_constraint c join pg_namespace n on n.oid = c.connamespace
        where c.condeferrable having count(*) > 0),
       set_config('enable_seqscan', current_setting('millrace.enable_seqscan'), true)
