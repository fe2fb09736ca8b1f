-- How many rows were written in each database of this server, by sessions that have ended and by those that have reported it.
-- Null where the server does not count.
select datname::text, case when current_setting('track_counts')::boolean then tup_inserted + tup_updated end
from pg_stat_database
where datname is not null
