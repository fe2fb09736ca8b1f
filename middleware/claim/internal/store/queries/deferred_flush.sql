-- Returns which claims exist, in their day, among the hashes or ahead of their day, by the primary keys. A failed event that is kept is one
-- too, by the unique index of claim_failed: it may outlive its day. A visible claim was committed before. Makes this transaction's
-- commit flush the WAL with everything that was committed before. (Without OFFSET, the planner might hash the whole table.)
select array(select exists (select from {schema}.processed p where p.event_id = w.record and p.consumer = w.consumer offset 0)
                 or exists (select from {schema}.processed p where p.event_id = w.hash and p.consumer = w.consumer offset 0)
                 or exists (select from {schema}.processed_ahead a where a.record = w.record and a.consumer = w.consumer offset 0)
                 or exists (select from {schema}.claim_failed f where f.consumer = w.consumer and f.record = w.record and f.state <> 'nacked' offset 0)
             from unnest($1::uuid[], $2::smallint[], $3::uuid[]) with ordinality as w(record, consumer, hash, place) order by w.place),
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       pg_logical_emit_message(true, 'millrace', '')
