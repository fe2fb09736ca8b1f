-- Sets the operator's command on failed events in one of the states $2, of the events $3, the key $4, the topic $5 and the
-- group $6 where those are given. Locks the rows that it flags; the holder of the shard's lease carries the command out.
update {schema}.outbox_failed set command = $1
where state = any($2::text[]) and ($3::text[] is null or event_id = any($3::text[]))
  and key = coalesce($4::text, key) and topic = coalesce($5::text, topic)
  and ($6::text is null or reason <> '' and left(md5({alike}reason{/alike}), 8) = $6)
