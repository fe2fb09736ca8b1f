-- Moves due events into the outbox, by the index outbox_delayed_due, the earliest first: at most $1, and at most $2 bytes, but at least
-- one event. Only one transaction moves at a time; otherwise the numbers would not follow the due times. A row that is being cancelled is
-- left for the next time. The time is added to the headers, a JSON object, as text, so that they need not be parsed. Returns how many
-- were moved, their hashes, and the microseconds until the next one is due: 0 if the bytes left some behind. Locks up to $1 due rows.
with mover as materialized (
    select pg_try_advisory_xact_lock(hashtextextended('{schema}.outbox_delayed', 0)) as alone
), due as materialized (
    select d.ctid as place, d.due_at, octet_length(d.payload) + octet_length(d.headers) as size from {schema}.outbox_delayed d
    where (select alone from mover) and d.due_at <= statement_timestamp()
    order by d.due_at limit $1::int
    for update skip locked
), gone as (
    delete from {schema}.outbox_delayed
    where ctid = any (array(
        select place from (select place, size, sum(size) over (order by due_at rows unbounded preceding) as total from due) as summed
        where total = size or total <= $2::bigint))
    returning due_at, hash, event_id, topic, key, headers, payload, created_at
), moved as (
    insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload, created_at)
    select e.shard, {schema}.outbox_next(e.shard), e.event_id, e.topic, e.key,
           convert_to('{"millrace_due_at":"' || to_char(e.due_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"'
               || case when length(e.headers) > 2 then ',' else '' end, 'UTF8') || substring(e.headers from 2),
           e.payload, clock_timestamp()
    from (
        select {schema}.outbox_shard_of(g.hash) as shard, g.* from gone g order by g.due_at, g.created_at
    ) as e
)
select (select count(*) from gone), coalesce((select array_agg(hash) from gone), '{}'),
       case when (select count(*) from gone) < (select count(*) from due) then 0 else (
           select (extract(epoch from d.due_at - statement_timestamp()) * 1000000)::bigint
           from {schema}.outbox_delayed d where d.due_at > statement_timestamp() order by d.due_at limit 1) end
