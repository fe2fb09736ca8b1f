-- The backlog of these shards, each counted up to a limit, and the age of its oldest event. Uses the index outbox_shard_seq. No locks.
select s, (select count(*) from (select from {schema}.outbox where shard = s limit 100000) as counted),
       (select extract(epoch from clock_timestamp() - created_at)::float8 from {schema}.outbox where shard = s order by seq limit 1)
from unnest($1::smallint[]) as s
