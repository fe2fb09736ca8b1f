-- The same, and certain rows besides: those that fill holes, and those whose payload was left out before. One statement,
-- one snapshot: whoever sees a later event of a key sees the earlier ones. Payloads of the topics in $5 are left out (null).
select ctid, xmin, seq, event_id, topic, key, headers, payload, created_at
from {schema}.outbox
where shard = $1::smallint and seq = any($4::bigint[])
union all
(select ctid, xmin, seq, event_id, topic, key, headers, case when topic = any($5::text[]) then null else payload end, created_at
from {schema}.outbox
where shard = $1::smallint and seq > $2::bigint
order by seq
limit $3::int)
