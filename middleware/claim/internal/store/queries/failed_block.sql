-- Holds up a key. It locks the key's row even if it is there, because whoever takes the last event of the key away would
-- not see ours yet.
insert into {schema}.claim_key (consumer, key) values ($1::smallint, $2) on conflict (consumer, key) do update set key = excluded.key
