-- What operators did, the last first, by claim_audit's primary key backwards.
select at, actor, action, consumer, event_id, detail from {schema}.claim_audit
where ($1::text is null or event_id = $1) and ($2::text is null or consumer = $2)
order by id desc limit $3::int
