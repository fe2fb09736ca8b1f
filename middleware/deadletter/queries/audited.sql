-- What operators did, the last first, by claim_audit's primary key backwards, from $1 on.
select id, at, actor, action, consumer, event_id, detail from {schema}.claim_audit
where id < $1 and ($3::text is null or event_id = $3) and ($4::text is null or consumer = $4)
order by id desc limit $2::int
