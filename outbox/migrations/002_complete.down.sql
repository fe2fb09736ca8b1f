-- Drops failed, delayed and archived events: empty those tables first. The number of shards must be 16.
do $$
begin
    if (select shards from {schema}.outbox_layout) <> 16 then
        raise exception 'there are % shards: run "millrace outbox shards 16" first', (select shards from {schema}.outbox_layout);
    end if;
end
$$;
alter table {schema}.outbox_relay drop column name;
alter table {schema}.outbox_shard drop column strikes, drop column suspect, drop column attempts;
drop function {schema}.outbox_archive_days(interval), {schema}.outbox_next(smallint), {schema}.outbox_shard_of(bigint);
drop table {schema}.outbox_archive, {schema}.outbox_delayed, {schema}.outbox_failed, {schema}.outbox_layout;
