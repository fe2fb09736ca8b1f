-- Clears the crash guard's record, because nothing in the shard ends its relay. Locks the shard's row.
update {schema}.outbox_shard set deaths = '{}', noted = null, suspect = null, suspect_deaths = '{}'
where shard = $1::smallint and relay_id = $2::uuid
