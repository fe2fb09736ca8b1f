-- Returns the number of events in the outbox, counted up to $1, and an estimate. The estimate comes first, from the distance between each
-- shard's first row and its last number: two probes of the index outbox_shard_seq and one of the sequence for each shard. A sequence that
-- was set back is below the last row. Numbers in between may be missing (rolled back, or failed), so the rows are counted only if the
-- estimate reaches $1. Otherwise the estimate is returned as the count too.
with estimate as materialized (
    select coalesce(sum(greatest(pg_sequence_last_value(('{schema}.outbox_seq_' || s.shard)::regclass), l.seq) - f.seq + 1), 0)::bigint as events
    from {schema}.outbox_shard s
    cross join lateral (select o.seq from {schema}.outbox o where o.shard = s.shard order by o.seq limit 1) f
    cross join lateral (select o.seq from {schema}.outbox o where o.shard = s.shard order by o.seq desc limit 1) l
)
select case when e.events >= $1::bigint then (select count(*) from (select from {schema}.outbox limit $1::bigint) o) else e.events end,
       e.events
from estimate e
