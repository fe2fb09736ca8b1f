-- Sequences beside the highest number that stands in their shard: one probe of the index outbox_shard_seq each; no locks.
select s.shard, c.oid is not null, coalesce(case when c.oid is not null then pg_sequence_last_value(c.oid) end, 0), coalesce(m.seq, 0)
from {schema}.outbox_shard s
left join pg_class c on c.relnamespace = '{schema}'::regnamespace and c.relname = 'outbox_seq_' || s.shard and c.relkind = 'S'
left join lateral (select max(o.seq) as seq from {schema}.outbox o where o.shard = s.shard) m on true
order by s.shard
