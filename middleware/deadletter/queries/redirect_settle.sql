-- Records that another consumer has these events from here on, sorted, by claim_failed's primary key. Returns those that it had not,
-- with their keys: what the broker redelivers of them is absorbed. Waits for handlers of that consumer that have one in hand. A dead
-- letter of its own may be older than the records. Below the consumer's floor processed_settle looks for the hash alone, but the record
-- may still exist.
select id, key from (select * from {schema}.claim_failed where id = any ($1::bigint[]) order by id) f
where {schema}.processed_settle(record, encode(substring(set_byte(sha256(convert_to(event_id, 'UTF8')), 0, 255) from 1 for 16), 'hex')::uuid, $2::smallint)
  and not exists (select from {schema}.processed p where p.event_id = f.record and p.consumer = $2::smallint)
  and not exists (select from {schema}.claim_failed e where e.consumer = $2 and e.record = f.record and e.state <> 'nacked')
