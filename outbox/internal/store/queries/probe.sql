-- Returns: whether a relay would find something to do (events, due delayed or failed events, or commands), by the indexes
-- outbox_shard_seq (one probe for each shard), outbox_delayed_due and outbox_failed_due; whether a relay runs that publishes events; in
-- how many milliseconds something is due, or null; how many events are dead, up to 10,000; the database's name; and the server's start,
-- which tells servers apart. No locks.
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
