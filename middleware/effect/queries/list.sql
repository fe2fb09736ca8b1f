-- Effects in state $1, 'done', 'not_done' or 'all', the oldest call first, at most $2, whose keys contain $3. Uses effect_called, the
-- primary key for the key $4, and effect_event for the event $5.
select key, case when state in ('running', 'pending') and until <= clock_timestamp() then 'doubt' else state end, calls,
       first_called_at, called_at, until, response, reason, settled_by, settled_at, conflicts
from {schema}.effect
where ($1::text = 'all' or state = $1)
  and strpos(key, $3::text) > 0 and ($4::text is null or key = $4) and ($5::text is null or event_id = $5 and event_id <> '')
order by called_at
limit $2
