-- The row of an event to be handled, by the primary key, and whether it is the first of its key. Locks the row until the handler
-- ends, so that an operator's command comes before or after it. Skips a locked row: another process has it.
select f.state, f.headers, f.payload,
       f.key = '' or not exists (select from {schema}.claim_failed e
          where e.consumer = f.consumer and e.key = f.key and e.key <> '' and e.id < f.id and e.state <> 'nacked')
from {schema}.claim_failed f where f.id = $1::bigint and f.consumer = $2::smallint for update skip locked
