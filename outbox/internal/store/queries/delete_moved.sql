-- Like delete.sql, for rows that were no longer at their ctids (VACUUM FULL), by the index outbox_shard_seq.
delete from {schema}.outbox
where ctid = any (array(
    select place
    from unnest($1::smallint[], $2::bigint[], $3::text[]) as d (shard, seq, event_id)
    cross join lateral (
        select ctid as place from {schema}.outbox o
        where o.shard = d.shard and o.seq = d.seq and o.event_id = d.event_id
        offset 0 -- one index probe for each row; another join may read the whole table
    ) as there))
