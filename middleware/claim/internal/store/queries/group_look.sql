-- Tells which of a group's events were processed before, by the primary key of processed, in the days that the text names in the
-- place of the first comment: as parameters they would be known too late, and all days would be locked. It runs after their locks were
-- got, in a snapshot of its own: nobody can add a record in between. Answers too which events must be claimed alone: those
-- that have failed before, and those of a key that is held up, by the unique indexes of claim_failed and claim_key, and those
-- whose day ($5, null where there is none) may be gone or not be there yet; whether the consumer's number is still that of
-- its name ($3); and what brings back the deferred constraints of the database after
-- a check of all of them: null when none is deferrable, '' when all of them begin as immediate. (Without OFFSET a whole
-- table might be hashed. Names that constraints share which are not deferrable cannot be deferred.)
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
