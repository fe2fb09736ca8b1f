-- Frees the keys that nothing is left of, under the locks of their rows. By the primary key and the index on keys.
delete from {schema}.claim_key k using unnest($1::smallint[], $2::text[]) u(consumer, key)
where k.consumer = u.consumer and k.key = u.key
  and not exists (select from {schema}.claim_failed f where f.consumer = k.consumer and f.key = k.key and f.key <> '' and f.state <> 'nacked')
