-- Begins a replay, and records who began it. Its end is now at the latest, by the server's clock.
with audit as (
    insert into {schema}.outbox_audit (actor, action, events, detail)
    values ($1, 'replay', 0, jsonb_strip_nulls(jsonb_build_object('note', nullif($2::text, ''), 'topic', $3::text, 'key', $4::text,
        'since', $5::timestamptz, 'until', least($6::timestamptz, now()), 'to', $7::text)))
    returning id
)
insert into {schema}.outbox_replay (id, topic, key, until, to_topic, published_at, rate, selected, more)
select id, $3::text, $4::text, least($6::timestamptz, now()), $7::text, coalesce($5::timestamptz, '-infinity'), $8::int, $9::bigint, $10::boolean from audit
returning id
