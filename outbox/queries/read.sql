-- The oldest rows of a shard, up to $2 rows and $5 bytes but at least one, by the index outbox_shard_seq, without locks:
-- only the shard's lease holder reads it. Always from the start: a number is taken before its commit, so a lower one may
-- become visible after a higher one. The lengths come from the row, also of payloads that are stored elsewhere.
select seq, event_id, topic, key, headers, payload
from (
    select *, sum(octet_length(payload) + octet_length(headers)) over (order by seq rows unbounded preceding) as total
    from (
        select seq, event_id, topic, key, headers, payload
        from {schema}.outbox
        where shard = $1 and not (case key when '' then event_id = any($3::text[]) else key = any($4::text[]) end)
        order by seq
        limit $2
    ) as oldest
) as summed
where total - octet_length(payload) - octet_length(headers) < $5
order by seq
