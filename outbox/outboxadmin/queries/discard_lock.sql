-- Keeps the pause $2 of the topic $1 until the transaction ends, if it is still that one. Locks the topic's row.
select from {schema}.outbox_topic
where topic = $1::text and (extract(epoch from paused_at) * 1000000)::bigint = $2::bigint
for share
