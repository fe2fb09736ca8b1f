-- Events that failed, with the group of their errors: the reason and the error without what differs from event to event.
-- Reads all of claim_failed up to the limit: no index is of use. No locks.
select f.id, f.event_id, f.consumer, c.name, f.key, f.state, left(md5(g.text), 8), g.text, f.first_at, f.failed_at
from {schema}.claim_failed f
join {schema}.consumer c on c.id = f.consumer
cross join lateral (select f.reason || case f.error when '' then '' else ': ' end ||
    {alike}regexp_replace(f.error, '^claim event "(\\.|[^"\\])*" for consumer "(\\.|[^"\\])*": ', ''){/alike} as text) g
where ($1::text[] is null or f.event_id = any ($1))
  and ($2::text is null or c.name = $2)
  and ($3::text is null or f.key = $3)
  and ($4::text is null or left(md5(g.text), 8) = $4)
  and ($5::text[] is null or f.state = any ($5))
  and ($6::float8 is null or f.failed_at < now() - $6 * interval '1 second')
order by f.id
limit $7::int
