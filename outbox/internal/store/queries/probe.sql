-- Whether a relay would find something to do: events, delayed or failed ones that are due, or commands; by the indexes
-- outbox_shard_seq (one probe for each shard), outbox_delayed_due and outbox_failed_due. Whether a relay runs that gets events
-- published. In how many milliseconds something is due; null: nothing is. How many events are dead, up to 10,000. Which database
-- this is, and when its server started, by which one server is told from another. No locks.
select exists (
           select from {schema}.outbox_shard s
           cross join lateral (select from {schema}.outbox o where o.shard = s.shard order by o.seq limit 1) first)
       or exists (select from {schema}.outbox_delayed where due_at <= now())
       or exists (
           select from {schema}.outbox_failed
           where (state = 'retrying' or command is not null) and (command is not null or retry_at <= now())),
       exists (select from {schema}.outbox_relay where expires_at > now() and not struggling and shunned = 0),
       (extract(epoch from least(
           (select min(due_at) from {schema}.outbox_delayed where due_at > now()),
           (select min(retry_at) from {schema}.outbox_failed where (state = 'retrying' or command is not null) and retry_at > now())
       ) - now()) * 1000)::bigint,
       (select count(*) from (select from {schema}.outbox_failed where state = 'dead' limit 10000) d),
       current_database(), pg_postmaster_start_time()
