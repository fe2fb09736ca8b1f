-- The oldest rows of a shard, by the index outbox_shard_seq, without locks: only the shard's lease holder reads it. Always
-- from the start: a number is taken before its commit, so a lower one may become visible after a higher one.
select seq, event_id, topic, key, headers, payload
from {schema}.outbox
where shard = $1 and not (case key when '' then event_id = any($3::text[]) else key = any($4::text[]) end)
order by seq
limit $2
