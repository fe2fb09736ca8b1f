-- What consumers did in the last hour, by minute, from at most $1 rows of journal, the newest first by its primary key. The last
-- column is the number of rows read, which shows whether there are older ones. No locks.
with newest as (
    select * from {schema}.journal where minute >= date_trunc('minute', now()) - interval '1 hour' order by minute desc limit $1::int
)
select c.name, n.minute, sum(n.handled)::int8, sum(n.duplicates)::int8, sum(n.contended)::int8, sum(n.failed)::int8, sum(n.busy_ms)::int8, max(n.longest_ms)::int8,
    (select count(*) from newest)
from newest n join {schema}.consumer c on c.id = n.consumer
group by c.name, n.minute order by c.name, n.minute
