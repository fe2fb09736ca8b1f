-- A redirect that would form a chain with one from $1 to $2: it leads to $1, or goes on from $2. No locks.
select topic, redirect_to from {schema}.outbox_topic
where redirect_to is not null and (redirect_to = $1::text or topic = $2::text)
order by topic limit 1
