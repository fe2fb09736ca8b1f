-- The number of effects in doubt, and the age of the oldest doubt in seconds. Uses effect_unsettled.
select count(*), coalesce(extract(epoch from clock_timestamp() - min(until)), 0)::float8
from {schema}.effect
where state in ('running', 'pending', 'doubt') and (state = 'doubt' or until <= clock_timestamp())
