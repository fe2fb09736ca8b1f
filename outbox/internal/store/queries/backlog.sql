-- Whether $1 events or more are in the outbox. First an estimate, from the distance between each shard's first row and
-- its last number: one probe of the index outbox_shard_seq and one of the sequence for each shard. Numbers may be missing
-- in between (rolled back, or failed), so only when that is too much the rows are counted, up to $1 of them. Answers
-- the count, or the estimate where that is less than $1; and the estimate.
with estimate as materialized (
    select coalesce(sum(pg_sequence_last_value(('{schema}.outbox_seq_' || s.shard)::regclass) - f.seq + 1), 0)::bigint as events
    from {schema}.outbox_shard s
    cross join lateral (select o.seq from {schema}.outbox o where o.shard = s.shard order by o.seq limit 1) f
)
select case when e.events >= $1::bigint then (select count(*) from (select from {schema}.outbox limit $1::bigint) o) else e.events end,
       e.events
from estimate e
