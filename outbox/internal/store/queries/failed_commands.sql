-- Carries out at most $2 commands and returns the keys that it changed, if the relay $4 still holds the shard's lease of the term $5. A
-- discarded event blocks nothing any more. An event to be retried is due now, unless another blocks it. Only an operator's retry resets
-- the count of its attempts. The events $3 are being sent: their commands wait for the results. Uses the index outbox_failed_due. Locks
-- the rows that it changes.
update {schema}.outbox_failed
set command = null,
    state = case when state = 'discarded' and command = 'discard' then state
                 when command = 'discard' then 'discarded'
                 when state = 'blocked' then state
                 else 'retrying' end,
    attempts = case when command = 'retry' and state <> 'blocked' then 0 else attempts end,
    retry_at = case when command in ('retry', 'recover') and state <> 'blocked' then now() end
where id = any (array(select id from {schema}.outbox_failed where shard = $1::smallint and command is not null and id <> all($3::bigint[]) limit $2::int))
and command is not null -- still
and exists (select from {schema}.outbox_shard where shard = $1::smallint and relay_id = $4::uuid and term = $5::bigint)
returning key
