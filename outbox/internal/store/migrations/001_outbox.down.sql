-- Drops all events that are not published, and the archive: drain the outbox first.
drop function {schema}.outbox_archive_days(interval), {schema}.outbox_next(smallint), {schema}.outbox_shard_of(bigint),
    {schema}.outbox_cancel(text), {schema}.outbox_landing_slot(), {schema}.outbox_waiting(smallint, bigint, text[]),
    {schema}.outbox_discard(smallint, bigint[], text[], bigint[], text);
drop table {schema}.outbox, {schema}.outbox_failed, {schema}.outbox_delayed, {schema}.outbox_archive, {schema}.outbox_relay,
    {schema}.outbox_shard, {schema}.outbox_broker, {schema}.outbox_broker_process, {schema}.outbox_topic, {schema}.outbox_layout, {schema}.outbox_audit, {schema}.outbox_replay, {schema}.outbox_journal, {schema}.outbox_landing;
do $$
declare
    sequence regclass;
begin
    for sequence in -- however many shards there are
        select oid from pg_class where relnamespace = '{schema}'::regnamespace and relkind = 'S' and relname ~ '^outbox_seq_[0-9]+$'
    loop
        execute format('drop sequence %s', sequence);
    end loop;
end
$$;
