-- Sets the operator's command on the next $9 failed events with IDs after $7 and up to $8: those in one of the states $2, of the
-- events $3, the key $4, the topic $5 and the group $6 where those are given. Returns how many it found, how many it flagged, the
-- last one's ID and the table's. Locks the rows that it flags; the holder of the shard's lease carries the command out.
with page as materialized (
    select id from {schema}.outbox_failed
    where id > $7::bigint and id <= $8::bigint
      and state = any($2::text[]) and ($3::text[] is null or event_id = any($3::text[]))
      and key = coalesce($4::text, key) and topic = coalesce($5::text, topic)
      and ($6::text is null or reason <> '' and left(md5({alike}reason{/alike}), 8) = $6)
    order by id limit $9::bigint
), flagged as (
    update {schema}.outbox_failed f set command = $1 from page where f.id = page.id and f.state = any($2::text[]) returning f.id
)
select (select count(*) from page), (select count(*) from flagged), coalesce((select max(id) from page), 0), coalesce((select max(id) from {schema}.outbox_failed), 0)
