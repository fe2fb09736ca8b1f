-- Index: schedule_pkey. Locks the row, unless the time $3 was fired (null: whatever was), or another process has locked it. Three
-- answers are possible: there is no row; this transaction has it, with the state that was committed last; or it has not.
with mine as (
    select due_after from {schema}.schedule
    where service = $1 and name = $2 and ($3::timestamptz is null or due_after < $3)
    for update skip locked
)
select now(), coalesce(m.due_after, s.due_after), m.due_after is not null
from (values (0)) as one
left join {schema}.schedule s on s.service = $1 and s.name = $2
left join mine m on true
