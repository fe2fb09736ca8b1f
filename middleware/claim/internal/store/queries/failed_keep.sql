-- Keeps an event that was not handled, or records another attempt. Uses the unique index on consumer and record, and locks the row.
-- Null arguments leave headers and payload unchanged. Without $9 it was not an attempt, and the last error stays.
insert into {schema}.claim_failed as f
    (consumer, record, event_id, key, state, attempts, reason, error, history, handler, topic, headers, payload, due_at)
values ($1::smallint, $2::uuid, $3, $4, $5, $6, $7, $8,
        case when $9::boolean then jsonb_build_array(jsonb_build_object('at', now(), 'by', $10::text, 'error', left($8, 500))) else '[]' end,
        $11, $12, $13, $14, now() + $15::bigint * interval '1 millisecond')
on conflict (consumer, record) do update set
    state = excluded.state, attempts = excluded.attempts, reason = excluded.reason,
    error = case when $9 then excluded.error else f.error end,
    history = case when $9 and jsonb_array_length(f.history) >= 20 then f.history - 0 else f.history end || excluded.history,
    headers = coalesce(excluded.headers, f.headers), payload = coalesce(excluded.payload, f.payload),
    due_at = excluded.due_at, failed_at = now()
returning id
