-- Inserts any number of events in one statement, in the order of the arrays. Writes the index outbox_shard_seq; takes
-- only the locks of an insert. The transaction has its ID before any number is taken, so that a reader can tell when
-- every owner of a number has ended. It commits to disk also where the role or the caller set synchronous_commit = off:
-- a relay sends what it sees, and a crash of the server must not undo what was sent. Sequences are regclass literals: looking them up by name costs more than the row.
insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload)
select e.shard,
       case when pg_current_xact_id() is not null
             and (current_setting('synchronous_commit') <> 'off' or set_config('synchronous_commit', 'on', true) is not null)
       then case e.shard
         when 0 then nextval('{schema}.outbox_seq_0'::regclass)
         when 1 then nextval('{schema}.outbox_seq_1'::regclass)
         when 2 then nextval('{schema}.outbox_seq_2'::regclass)
         when 3 then nextval('{schema}.outbox_seq_3'::regclass)
         when 4 then nextval('{schema}.outbox_seq_4'::regclass)
         when 5 then nextval('{schema}.outbox_seq_5'::regclass)
         when 6 then nextval('{schema}.outbox_seq_6'::regclass)
         when 7 then nextval('{schema}.outbox_seq_7'::regclass)
         when 8 then nextval('{schema}.outbox_seq_8'::regclass)
         when 9 then nextval('{schema}.outbox_seq_9'::regclass)
         when 10 then nextval('{schema}.outbox_seq_10'::regclass)
         when 11 then nextval('{schema}.outbox_seq_11'::regclass)
         when 12 then nextval('{schema}.outbox_seq_12'::regclass)
         when 13 then nextval('{schema}.outbox_seq_13'::regclass)
         when 14 then nextval('{schema}.outbox_seq_14'::regclass)
         when 15 then nextval('{schema}.outbox_seq_15'::regclass)
       end end,
       e.event_id, e.topic, e.key, e.headers, e.payload
from unnest($1::smallint[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::bytea[])
     as e (shard, event_id, topic, key, headers, payload)
