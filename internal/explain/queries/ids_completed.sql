-- IDs of events that consumers have completed: UUIDv7s that are like one of the patterns $2, up to $3 of them. The first
-- pattern must begin with 8 digits, which events of about one minute have in common: only those are read, by the primary key
-- of processed; no locks. A delayed event is recorded under another ID, and is not found.
with given as (
    select replace(split_part(($2::text[])[1], '%', 1), '-', '') as digits
), bounds as (
    select rpad(digits, 32, '0')::uuid as first, rpad(digits, 32, 'f')::uuid as last from given where length(digits) between 8 and 32
)
select distinct p.event_id::text as event_id from {schema}.processed p
where p.event_id between (select first from bounds) and (select last from bounds)
    and (p.event_id::text = $1 or p.event_id::text like any ($2::text[])) and p.event_id::text ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7'
order by 1 limit $3
