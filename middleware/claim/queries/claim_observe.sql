-- Events that failed, by consumer and state, and for how many seconds the longest of those that wait has been due. Reads all
-- of claim_failed; locks nothing.
select c.name, f.state, count(*), extract(epoch from now() - min(f.due_at) filter (where f.state = 'waiting' and f.due_at < now()))::float8
from {schema}.claim_failed f join {schema}.consumer c on c.id = f.consumer
group by c.name, f.state
