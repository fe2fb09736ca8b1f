-- Adds the counts of process $1 to its rows of this minute, by journal's primary key. Locks no row of another process. A consumer
-- that has never claimed has no number, and is left out.
insert into {schema}.journal as j (minute, consumer, run, handled, duplicates, contended, failed, busy_ms, longest_ms)
select date_trunc('minute', clock_timestamp()), c.id, $1::bigint, n.handled, n.duplicates, n.contended, n.failed, n.busy, n.longest
from unnest($2::text[], $3::int[], $4::int[], $5::int[], $6::int[], $7::bigint[], $8::int[]) n (consumer, handled, duplicates, contended, failed, busy, longest)
join {schema}.consumer c on c.name = n.consumer
on conflict (minute, consumer, run) do update set handled = j.handled + excluded.handled, duplicates = j.duplicates + excluded.duplicates,
    contended = j.contended + excluded.contended, failed = j.failed + excluded.failed, busy_ms = j.busy_ms + excluded.busy_ms, longest_ms = greatest(j.longest_ms, excluded.longest_ms)
