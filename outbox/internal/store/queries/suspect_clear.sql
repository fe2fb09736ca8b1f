-- The shard gets on: nothing in it kills its relay. Locks the shard's row.
update {schema}.outbox_shard set strikes = 0, suspect = null, attempts = 0
where shard = $1::smallint and relay_id = $2::uuid
