-- The relay is there, for another $2 seconds. Locks its own row.
insert into {schema}.outbox_relay (relay_id, expires_at) values ($1, now() + $2 * interval '1 second')
on conflict (relay_id) do update set expires_at = excluded.expires_at
