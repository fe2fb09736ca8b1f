-- The number of effects in doubt, and the age of the oldest doubt in seconds. Uses effect_unsettled, and reads no others.
select count(*), coalesce(extract(epoch from statement_timestamp() - min(until)), 0)::float8
from {schema}.effect
where state in ('running', 'pending', 'doubt') and until <= statement_timestamp()
