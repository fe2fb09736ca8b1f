-- The processes that broker_sweep has left, and for how many seconds each has neither had messages of either broker nor published under
-- an earlier step. A process that vanished may have had messages until it expired. Reads all of outbox_broker_process, which is small. No
-- locks.
select name, service, from_name, to_name, expires_at > clock_timestamp(), epoch, consumers,
    extract(epoch from clock_timestamp() - greatest(from_busy, epoch_at, case when expires_at < clock_timestamp() then expires_at end))::float8,
    extract(epoch from clock_timestamp() - greatest(to_busy, epoch_at, case when expires_at < clock_timestamp() then expires_at end))::float8
from {schema}.outbox_broker_process order by service, name
