-- Forgets what operators did, and replays that ended, longer ago than that, and notes it. Reads all of claim_audit and claim_replay.
with replays as (
    delete from {schema}.claim_replay where ended_at < now() - $1::float8 * interval '1 second' returning id
), superseded as (
    delete from {schema}.claim_replay_superseded where replay in (select id from replays)
), events as (
    delete from {schema}.claim_replay_event where replay in (select id from replays)
), forgotten as (
    delete from {schema}.claim_audit where at < now() - $1::float8 * interval '1 second' returning 1
), counted as (
    select count(*) as n from forgotten
), noted as (
    insert into {schema}.claim_audit (actor, action, consumer, event_id, detail)
    select $2, 'purge audit', '', '', jsonb_build_object('note', $3::text, 'rows', n) from counted where n > 0
)
select n from counted
