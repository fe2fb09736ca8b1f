-- Blocks a key. Locks the key's row even if it exists: a transaction that removes the key's last event could not see ours yet.
insert into {schema}.claim_key (consumer, key) values ($1::smallint, $2) on conflict (consumer, key) do update set key = excluded.key
