-- Like delete_archive.sql, for rows that were no longer at their ctids.
with gone as (
    delete from {schema}.outbox
    where ctid = any (array(
        select place
        from unnest($1::smallint[], $2::bigint[], $3::text[]) as d (shard, seq, event_id)
        cross join lateral (
            select ctid as place from {schema}.outbox o
            where o.shard = d.shard and o.seq = d.seq and o.event_id = d.event_id
            offset 0 -- one index probe for each row; another join may read the whole table
        ) as there))
    returning shard, seq, event_id, topic, key, headers, payload, created_at, replayed
)
insert into {schema}.outbox_archive (shard, seq, event_id, topic, key, headers, payload, created_at, relay)
select shard, seq, event_id, topic, key, headers, payload, created_at, $4::text from gone where not replayed
