-- Of the events $1 the last $2 that are in one of the states $3, of consumer $4, with key $5, of topic $6, with reason $7, that failed from
-- $8 to $9, of group $10, where those are given; by claim_failed's primary key.
select f.id, f.event_id, f.consumer, c.name, f.key, f.state, f.error_group, f.first_at, f.failed_at, f.xmin
from {schema}.claim_failed f
join {schema}.consumer c on c.id = f.consumer
where f.id = any ($1::bigint[])
  and f.state = any ($3::text[])
  and ($4::text is null or c.name = $4)
  and ($5::text is null or f.key = $5 and f.key <> '')
  and ($6::text is null or f.topic = $6)
  and ($7::text is null or f.reason = $7)
  and ($8::timestamptz is null or f.failed_at >= $8)
  and ($9::timestamptz is null or f.failed_at < $9)
  and ($10::text is null or f.error_group = $10)
order by f.id desc
limit $2::int
