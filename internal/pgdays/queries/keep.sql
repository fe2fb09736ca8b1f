-- Notes that service $1 keeps its records for $2, unless $1 is ''. Returns the time before which nobody keeps any: $2 before now, or earlier
-- if a service has noted more. A row counts until it was not renewed for as long as it says, and a day. A service that has changed its
-- retention has two rows: its old processes may still run, and may come back. Reads the whole table, which has a few rows.
with noted as (
    insert into {schema}.{table}_retention (service, keep) select $1::text, $2::interval where $1::text <> ''
    on conflict (service, keep) do update set renewed_at = excluded.renewed_at
)
select now() - greatest($2::interval, max(keep))
from {schema}.{table}_retention where renewed_at + keep + interval '1 day' > now()
