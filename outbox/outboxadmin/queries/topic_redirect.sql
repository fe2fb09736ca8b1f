-- Has the events of the topic $1 published to the topic $2. Locks its row.
insert into {schema}.outbox_topic as t (topic, redirect_to, redirected_at, redirected_by, redirect_note)
values ($1::text, $2::text, now(), $3::text, $4::text)
on conflict (topic) do update set redirect_to = excluded.redirect_to, redirected_at = excluded.redirected_at,
    redirected_by = excluded.redirected_by, redirect_note = excluded.redirect_note
