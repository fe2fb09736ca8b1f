-- Registers the relay for another $2 milliseconds, with the reasons why topics wait. Locks its own row.
insert into {schema}.outbox_relay (relay_id, expires_at, name, struggling, shunned, seen_at, topics)
values ($1::uuid, now() + $2::int * interval '1 millisecond', $3::text, $4::boolean, $5::int, now(), $6::text::jsonb)
on conflict (relay_id) do update set expires_at = excluded.expires_at, struggling = excluded.struggling, shunned = excluded.shunned,
    seen_at = excluded.seen_at, topics = excluded.topics
