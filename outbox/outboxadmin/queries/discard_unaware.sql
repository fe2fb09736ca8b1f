-- What tells the pause of the topic $1 from others, and a live relay that holds shards and has not said yet that it knows of this pause
-- and has none of the topic's events in flight. No locks.
select p.pause, coalesce((
    select min(coalesce(nullif(r.name, ''), r.relay_id::text)) from {schema}.outbox_relay r
    where r.expires_at > now()
      and exists (select from {schema}.outbox_shard s where s.relay_id = r.relay_id and s.expires_at > now())
      and not r.topics @> jsonb_build_array(jsonb_build_object('topic', $1::text, 'state', 'paused', 'pause', p.pause))), '')
from (select (extract(epoch from paused_at) * 1000000)::bigint as pause from {schema}.outbox_topic where topic = $1::text and paused_at is not null) p
