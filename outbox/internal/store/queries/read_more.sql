-- Like read.sql, with one limit for all payloads together and with further rows. First (0) the rows with the numbers $6, which fill gaps
-- or whose payload was left out before; then (1) the rows above $2; then (2) up to $9 rows of topic $7 from number $8 to $2, which an
-- earlier read left in the table. One statement is one snapshot: if it shows a later event of a key it shows the earlier ones. Payloads
-- beyond $4 bytes in all are left out (null).
select place, writer, seq, event_id, topic, key, headers,
       case when not hidden and (before < $4::bigint or before = 0) then payload end, octet_length(headers) + octet_length(payload), created_at, part
from (
    select *, sum(size) over (order by part, seq rows unbounded preceding) - size as before
    from (
        select *, case when hidden then 0 else octet_length(headers) + octet_length(payload) end as size
        from (
            select 0 as part, place, writer, seq, event_id, topic, key, headers, payload, created_at, false as hidden
            from unnest($6::bigint[]) as list (number)
            cross join lateral (
                select ctid as place, xmin as writer, *
                from {schema}.outbox
                where shard = $1::smallint and seq = list.number
                offset 0 -- otherwise the planner may filter all rows of the shard by the list
            ) as listed
            union all
            (select 1, ctid, xmin, seq, event_id, topic, key, headers, payload, created_at, topic = any($5::text[])
            from {schema}.outbox
            where shard = $1::smallint and seq > $2::bigint
            order by seq
            limit $3::int)
            union all
            (select 2, ctid, xmin, seq, event_id, topic, key, headers, payload, created_at, false
            from {schema}.outbox
            where shard = $1::smallint and seq >= $8::bigint and seq <= $2::bigint and topic = $7::text
            order by seq
            limit $9::int)
        ) as parts
    ) as sized
) as summed
order by part, seq
