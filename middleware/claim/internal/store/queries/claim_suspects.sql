-- Events that were started alone, after they had been in flight when a process was killed. Reads all of claim_start, which has one
-- row for each event that was in flight in a killed process and has not come again. No locks.
select c.name, s.record::text, s.starts, coalesce(r.name, ''), s.noted_at
from {schema}.claim_start s
join {schema}.consumer c on c.id = s.consumer
left join {schema}.claim_run r on r.id = s.run
where s.starts > 0
order by s.starts desc, s.noted_at
limit $1
