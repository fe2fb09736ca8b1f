-- Marks an event before its handler runs, by claim_start's primary key, or returns the existing mark. The first column says whether
-- the mark is new. Returns no row if another process is just marking it. Commits without waiting for the disk: the death of a
-- process undoes no commit.
with quick as materialized (
    select set_config('synchronous_commit', 'off', true)
), noted as (
    insert into {schema}.claim_start (consumer, record, run, starts)
    select $1::smallint, $2::uuid, $3::bigint, 0 from quick
    on conflict do nothing
    returning run, starts
)
select true, run, starts from noted
union all
select false, run, starts from {schema}.claim_start where consumer = $1::smallint and record = $2::uuid
