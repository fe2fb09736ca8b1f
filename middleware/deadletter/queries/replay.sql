-- Has events tried again, by claim_failed's primary key, under the locks of their keys: one that is behind another of its
-- key, which the index on keys tells, waits for that.
update {schema}.claim_failed f
set state = case when behind then 'blocked' else 'retrying' end, due_at = case when not behind then now() end, attempts = 0, replayed = true
from (
    select id, key <> '' and exists (select from {schema}.claim_failed e
        where e.consumer = s.consumer and e.key = s.key and e.key <> '' and e.id < s.id and e.state <> 'nacked') as behind
    from {schema}.claim_failed s where id = any ($1::bigint[])) s
where f.id = s.id
returning behind
