-- Failed events by reason, but for numbers, IDs and quoted text: of the states $1, of topic $2, key $3 and group $4 where those
-- are given. Blocked events have no reason. Reads the whole table; no locks.
select left(md5(text), 8), text, count(*), count(*) filter (where state = 'dead'), count(*) filter (where state = 'retrying'),
       count(*) filter (where state = 'discarded'), array_agg(distinct topic order by topic), min(failed_at), max(failed_at)
from (
    select {alike}reason{/alike} as text, state, topic, failed_at
    from {schema}.outbox_failed
    where reason <> '' and state = any($1::text[]) and topic = coalesce($2::text, topic) and key = coalesce($3::text, key)
) f
where $4::text is null or left(md5(text), 8) = $4
group by text
order by 3 desc, 2
limit $5::int
