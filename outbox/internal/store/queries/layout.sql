-- The layout as it is written down, as its rows are, and as the functions have it; no locks.
select l.hash, l.shards, (select count(*) from {schema}.outbox_shard), n.lanname,
       coalesce(substring(f.prosrc from '% (\d+)\)')::int, 0),
       (select count(*) from pg_sequence join pg_class c on c.oid = seqrelid
        where c.relnamespace = '{schema}'::regnamespace and c.relname like 'outbox\_seq\_%')
from {schema}.outbox_layout l
join pg_proc f on f.oid = '{schema}.outbox_shard_of(bigint)'::regprocedure
join pg_proc g on g.oid = '{schema}.outbox_next(smallint)'::regprocedure
join pg_language n on n.oid = g.prolang
