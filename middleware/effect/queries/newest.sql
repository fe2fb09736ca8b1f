-- Effects as in list.sql, the last call first, among the last $6 calls. Uses effect_called.
select key, case when state in ('running', 'pending') and until <= clock_timestamp() then 'doubt' else state end, calls,
       first_called_at, called_at, until, response, reason, settled_by, settled_at, conflicts
from (select * from {schema}.effect order by called_at desc limit $6) e
where case $1::text
    when 'open' then (state in ('running', 'pending', 'doubt') or conflicts > 0) and (state = 'doubt' or until <= clock_timestamp() and state in ('running', 'pending') or conflicts > 0)
    when 'doubt' then (state in ('running', 'pending', 'doubt') or conflicts > 0) and (state = 'doubt' or until <= clock_timestamp() and state in ('running', 'pending'))
    when 'running' then (state in ('running', 'pending', 'doubt') or conflicts > 0) and state = 'running' and until > clock_timestamp()
    when 'pending' then (state in ('running', 'pending', 'doubt') or conflicts > 0) and state = 'pending' and until > clock_timestamp()
    when 'conflict' then conflicts > 0
    when 'all' then true
    else state = $1 end
  and strpos(key, $3::text) > 0 and ($4::text is null or key = $4) and ($5::text is null or event_id = $5 and event_id <> '')
order by called_at desc
limit $2
