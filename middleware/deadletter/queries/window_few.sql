-- As window.sql, for events $7 or a key $8, which select few: by the index on events or the one on keys. No locks.
select f.id from {schema}.claim_failed f
where f.consumer = any (array(select id from {schema}.consumer where $3::text is null or name = $3))
  and f.state = any ($2::text[]) and f.id < $1::bigint
  and ($7::text[] is null or f.event_id = any ($7))
  and ($8::text is null or f.key = $8 and f.key <> '')
  and ($4::text is null or f.error_group = $4)
  and ($5::timestamptz is null or f.failed_at < $5)
order by f.id desc
limit $6::int
