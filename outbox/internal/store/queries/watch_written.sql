-- How many rows were written in each database of this server, as far as sessions have ended or have reported it. Null if the server does
-- not count.
select datname::text, case when current_setting('track_counts')::boolean then tup_inserted + tup_updated end
from pg_stat_database
where datname is not null
