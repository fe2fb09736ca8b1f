-- Which of these shards have rows: one probe of the index outbox_shard_seq for each, without locks.
select s from unnest($1::smallint[]) as s
where exists (select from {schema}.outbox where shard = s)
