-- Tells which claims are there, in their day or among the hashes, by the primary key of processed, and makes the commit of this transaction flush the log
-- with everything that was committed before. A claim that is visible was committed before. (Without OFFSET the whole table
-- might be hashed.)
select array(select exists (select from {schema}.processed p where p.event_id = w.record and p.consumer = w.consumer offset 0)
                 or exists (select from {schema}.processed p where p.event_id = w.hash and p.consumer = w.consumer offset 0)
             from unnest($1::uuid[], $2::smallint[], $3::uuid[]) with ordinality as w(record, consumer, hash, place) order by w.place),
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       pg_logical_emit_message(true, 'millrace', '')
