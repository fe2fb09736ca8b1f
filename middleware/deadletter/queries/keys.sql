-- Locks the rows of keys, sorted, which comes before any lock in claim_failed. Makes those that are missing.
insert into {schema}.claim_key (consumer, key)
select distinct c, k from unnest($1::smallint[], $2::text[]) u(c, k) where k <> '' order by 1, 2
on conflict (consumer, key) do update set key = excluded.key
