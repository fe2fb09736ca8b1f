-- Frees a key that has no events left, under the lock of its row. A separate statement, because it must see everything that was
-- committed before the lock was acquired. By the primary key and the index on keys.
delete from {schema}.claim_key k where k.consumer = $1::smallint and k.key = $2
  and not exists (select from {schema}.claim_failed f where f.consumer = k.consumer and f.key = k.key and f.key <> '' and f.state <> 'nacked')
