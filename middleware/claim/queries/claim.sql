-- Claims an event: tries the advisory lock and, if it was got, inserts the record. Writes the primary key of processed.
-- The snapshot is older than the lock, so a plain look at the table could miss a record committed in between; the
-- unique index cannot. Answers: locked; fresh, which is false when the event was processed before; and whether the
-- consumer's number is still that of its name ($5), which a restored database may have given to another.
--
-- The settings are local to the transaction. A record that could be lost in a crash after the ack would lose the event:
-- a role's synchronous_commit = off does not hold here. A connection that is half open must not hold the claim for hours.
with claim as materialized (
    select pg_try_advisory_xact_lock($1) as locked
), known as materialized (
    select id from {schema}.consumer where id = $3::smallint and name = $5
), record as (
    insert into {schema}.processed (event_id, consumer)
    select $2::uuid, id from claim, known where locked
    on conflict do nothing
    returning 1
)
select (select locked from claim), exists (select from record), exists (select from known),
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       set_config('idle_in_transaction_session_timeout', $4::text, true)
