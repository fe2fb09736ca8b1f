-- Why events of topics wait: what operators have set, and what live relays said with their last renewals. No locks.
select topic, 'paused' as state, paused_at as since, paused_by, pause_note, null::timestamptz as retry, '' as redirect_to
from {schema}.outbox_topic where paused_at is not null
union all
select t.topic, 'paused', o.paused_at, o.paused_by, o.pause_note, null, t.redirect_to
from {schema}.outbox_topic t join {schema}.outbox_topic o on o.topic = t.redirect_to and o.paused_at is not null
union all
select topic, 'redirected', redirected_at, redirected_by, redirect_note, null, redirect_to
from {schema}.outbox_topic where redirect_to is not null
union all
select t.topic, t.state, r.seen_at - t.for_ms * interval '1 millisecond', '', t.error, r.seen_at + t.next_ms * interval '1 millisecond', ''
from {schema}.outbox_relay r
cross join lateral jsonb_to_recordset(r.topics) as t (topic text, state text, for_ms bigint, next_ms bigint, error text)
where r.expires_at > now() and t.state <> 'paused'
order by topic, since
