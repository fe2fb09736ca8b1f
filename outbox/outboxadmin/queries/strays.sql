-- Rows of shards that do not exist, counted up to $1: two ranges of the index outbox_shard_seq; no locks.
select count(*) from (
    (select from {schema}.outbox where shard < 0 order by shard, seq limit $1)
    union all
    (select from {schema}.outbox where shard >= (select shards from {schema}.outbox_layout) order by shard, seq limit $1)
    limit $1) o
