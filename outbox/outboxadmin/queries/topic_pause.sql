-- Pauses the topic $1. One that is paused stays so since it was, for another reason. Locks its row.
insert into {schema}.outbox_topic as t (topic, paused_at, paused_by, pause_note) values ($1::text, now(), $2::text, $3::text)
on conflict (topic) do update set paused_at = coalesce(t.paused_at, excluded.paused_at), paused_by = excluded.paused_by, pause_note = excluded.pause_note
