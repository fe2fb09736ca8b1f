-- Effects in state $1 that wait for somebody, the oldest call first: of each of their states at most $2 whose keys contain $3, those with
-- the earliest deadline or doubt. Uses effect_unsettled, so it does not read what waits in another state, or the primary key for the key
-- $4, or effect_event for the event $5. One part for each state, because only then the planner knows how many rows it has.
select key, case when state in ('running', 'pending') and until <= statement_timestamp() then 'doubt' else state end, calls,
       first_called_at, called_at, until, response, reason, settled_by, settled_at, conflicts
from (
    (select * from {schema}.effect where $1::text in ('open', 'doubt') and state = 'doubt'
     and strpos(key, $3::text) > 0 and ($4::text is null or key = $4) and ($5::text is null or event_id = $5 and event_id <> '') order by until limit $2)
    union all
    (select * from {schema}.effect where $1 in ('open', 'doubt') and state = 'running' and until <= statement_timestamp()
     and strpos(key, $3::text) > 0 and ($4::text is null or key = $4) and ($5::text is null or event_id = $5 and event_id <> '') order by until limit $2)
    union all
    (select * from {schema}.effect where $1 in ('open', 'doubt') and state = 'pending' and until <= statement_timestamp()
     and strpos(key, $3::text) > 0 and ($4::text is null or key = $4) and ($5::text is null or event_id = $5 and event_id <> '') order by until limit $2)
    union all
    (select * from {schema}.effect where $1 in ('open', 'conflict') and state = 'done' and conflicts > 0
     and strpos(key, $3::text) > 0 and ($4::text is null or key = $4) and ($5::text is null or event_id = $5 and event_id <> '') order by until limit $2)
    union all
    (select * from {schema}.effect where $1 = 'running' and state = 'running' and until > statement_timestamp()
     and strpos(key, $3::text) > 0 and ($4::text is null or key = $4) and ($5::text is null or event_id = $5 and event_id <> '') order by until limit $2)
    union all
    (select * from {schema}.effect where $1 = 'pending' and state = 'pending' and until > statement_timestamp()
     and strpos(key, $3::text) > 0 and ($4::text is null or key = $4) and ($5::text is null or event_id = $5 and event_id <> '') order by until limit $2)
) e
order by called_at
limit $2
