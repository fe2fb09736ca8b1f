-- Removes processes that ended more than a day ago, except the last one that consumed a topic, because another process must consume what
-- it left. Reads all of outbox_broker_process, which is small.
delete from {schema}.outbox_broker_process p where expires_at < now() - interval '1 day' and not exists (
    select from jsonb_array_elements(p.consumers) as c(read) where not exists (
        select from {schema}.outbox_broker_process other
        where (other.expires_at, other.process_id) > (p.expires_at, p.process_id)
          and other.from_name = p.from_name and other.to_name = p.to_name and other.consumers @> jsonb_build_array(c.read)))
