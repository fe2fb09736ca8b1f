-- Claims an event: tries the advisory lock and, if it was acquired, inserts the record into its day of processed (by its primary
-- key). The snapshot is older than the lock, so reading the table could miss a record committed in between; the unique index
-- cannot. Nothing is inserted for an event older than the consumer's floor. Reads consumer, claim_failed and, for an event with a
-- key, claim_key, by their unique indexes. Deletes the row of an earlier failed delivery.
--
-- $2 is the record and $7 its hash. The hash is used if $9 says so, or if the day was gone when the consumer registered. $6 is when
-- the event was minted, null if its ID does not tell. $8 is its key. Returns why the claim is refused, or '' if it is not. With $10
-- the statement fails for that reason, so that later statements of the same round trip are not executed. Then there may have been
-- no BEGIN to set the isolation level, so another level than read committed is refused. A claim is stale if the consumer's number
-- no longer belongs to its name ($5): a restored database may have given it to another consumer.
--
-- The settings are local to the transaction. The commit must be durable, even if the role has synchronous_commit = off: a record
-- lost in a crash after the ack would lose the event. The timeout keeps a half-open connection from holding the claim for hours.
with claim as materialized (
    select id, pg_try_advisory_xact_lock($1) as locked, coalesce($6::timestamptz < floor, false) as old,
           case when $9::boolean or $6::timestamptz < since then $7::uuid else $2::uuid end as place
    from {schema}.consumer where id = $3::smallint and name = $5
), record as (
    insert into {schema}.processed (event_id, consumer)
    select place, id from claim where locked and not old
    on conflict do nothing
    returning 1
)
select case
           when $10::boolean and current_setting('transaction_isolation') <> 'read committed' then {schema}.claim_refused('isolation', true)
           when claim.id is null then {schema}.claim_refused('stale', $10::boolean)
           when not locked then {schema}.claim_refused('contended', $10::boolean)
           when old then {schema}.claim_refused('old', $10::boolean)
           when not exists (select from record) or failed.state <> 'nacked' then {schema}.claim_refused('completed', $10::boolean)
           when $8::text <> '' and exists (select from {schema}.claim_key where consumer = $3::smallint and key = $8::text)
               then {schema}.claim_refused('blocked', $10::boolean)
           when failed.state is not null then {schema}.claim_forgotten($3::smallint, $2::uuid)
           else ''
       end,
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       set_config('idle_in_transaction_session_timeout', $4::text, true)
from (values (1)) as always left join claim on true
left join {schema}.claim_failed as failed on failed.consumer = $3::smallint and failed.record = $2::uuid
