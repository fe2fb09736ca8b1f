-- Of the events $1 the last $5 of topic $2, with reason $3, that failed since $4, where those are given; by claim_failed's primary key.
select f.id, f.event_id, f.consumer, c.name, f.key, f.state, f.error_group, f.first_at, f.failed_at
from {schema}.claim_failed f
join {schema}.consumer c on c.id = f.consumer
where f.id = any ($1::bigint[])
  and ($2::text is null or f.topic = $2)
  and ($3::text is null or f.reason = $3)
  and ($4::timestamptz is null or f.failed_at >= $4)
order by f.id desc
limit $5::int
