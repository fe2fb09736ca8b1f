-- Makes days of the archive and drops those that ended longer ago than $1. Takes the archive's lock, or gives up.
select {schema}.outbox_archive_days($1::text::interval)
