-- Gives events up, by claim_failed's primary key, and sees to it that they have their records in processed, which absorb
-- what the broker redelivers: that of an event whose day was dropped lies among the hashes.
with gone as (
    delete from {schema}.claim_failed where id = any ($1::bigint[]) returning record, event_id, consumer
)
select count({schema}.processed_settle(record,
    encode(substring(set_byte(sha256(convert_to(event_id, 'UTF8')), 0, 255) from 1 for 16), 'hex')::uuid, consumer))
from gone
