-- The record of processed events by day, so that retention drops a day and deletes no row. The rows are copied, a million in
-- a few seconds, and nobody claims meanwhile: claims wait, and fail where their deadline is shorter; their events are
-- redelivered. Programs of older versions go on beside it. One thing they do not know: the record of a delayed event now lies
-- in the day when it was due, so one that such a program has processed, whose ack was lost, runs again in a new program.
-- oldest program: 1

lock table {schema}.processed in access exclusive mode;
alter table {schema}.processed rename to processed_before;
alter index {schema}.processed_pkey rename to processed_before_pkey;

create table {schema}.processed (
    event_id   uuid        not null,             -- the UUIDv7 itself, with the due time of a delayed one; else a hash that begins with ff
    consumer   smallint    not null,
    claimed_at timestamptz not null default now(),
    primary key (event_id, consumer)
) partition by range (event_id);

-- The least UUIDv7 of a day.
create function {schema}.processed_bound(day date) returns uuid language sql immutable
as 'select (lpad(to_hex((extract(epoch from day) * 1000)::bigint), 12, ''0'') || repeat(''0'', 20))::uuid';

-- Hashes tell no day: they are pruned by the time of the claim.
create table {schema}.processed_hashed partition of {schema}.processed
    for values from ('ff000000-0000-0000-0000-000000000000') to (maxvalue);
create index processed_hashed_claimed on {schema}.processed_hashed (claimed_at);

-- Records of events from the future, whose day is not there: the event was replayed or discarded before it. Beside its hash,
-- which is pruned, this row waits for the day; who makes the day moves it there.
create table {schema}.processed_ahead (
    record   uuid     not null,
    consumer smallint not null,
    primary key (record, consumer)
);

-- Makes the days that are missing, of yesterday to so many from today, and those that nobody made in time. One that was there
-- before, because a later one is, has lost its records: what was minted until its end can no longer be proved new, so the
-- consumers' floor is raised. With its owner's rights, because a consumer has none to create
-- tables. A partition that is attached, and not created as one, holds up no claim. It gives up rather than wait for long.
create function {schema}.processed_days(ahead int) returns void language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '2s' set timezone = 'UTC' as $$
declare
    first date;
    last date;
    day date;
    name text;
begin
    perform pg_advisory_xact_lock(hashtextextended('{schema}.processed', 0));
    select least(min(d), current_date - 1), max(d) into first, last
    from (
        select to_date(right(c.relname, 8), 'YYYYMMDD') as d from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = '{schema}.processed'::regclass and c.relname ~ '_[0-9]{8}$'
    ) as days;
    for day in select first + n from generate_series(0, current_date + ahead - first) n loop
        name := format('{schema}.processed_%s', to_char(day, 'YYYYMMDD'));
        if to_regclass(name) is null then
            if day < last and day <= current_date then
                raise warning 'the partition of % was missing: events of until then that were not handled become dead letters', day;
                update {schema}.consumer set floor = greatest(floor, least(day + 1, now()));
            end if;
            execute format('create table %s (like {schema}.processed including all)', name);
            execute format('with due as (delete from {schema}.processed_ahead where record >= %L and record < %L returning record, consumer)
                insert into %s (event_id, consumer) select record, consumer from due',
                {schema}.processed_bound(day), {schema}.processed_bound(day + 1), name);
            execute format('alter table {schema}.processed attach partition %s for values from (%L) to (%L)',
                name, {schema}.processed_bound(day), {schema}.processed_bound(day + 1));
        end if;
    end loop;
end
$$;
revoke execute on function {schema}.processed_days(int) from public;

-- An event older than floor cannot be proved new: the days before it were dropped. Null: none was since the consumer is there.
-- since is what the floor of others was when the consumer came: what is older has its record among the hashes, because its
-- day is gone, or is about to go.
alter table {schema}.consumer add column floor timestamptz, add column since timestamptz;

-- Records an event that was settled as its hash because its day was not there: in that day, if it is there by now, or else
-- for whom makes it. Answers whether it is new. Nobody makes days until the transaction ends.
create function {schema}.processed_early(early uuid, of smallint) returns boolean language plpgsql
set search_path = pg_catalog, pg_temp as $$
begin
    perform pg_advisory_xact_lock_shared(hashtextextended('{schema}.processed', 0));
    begin
        insert into {schema}.processed (event_id, consumer) values (early, of) on conflict do nothing;
    exception when check_violation then
        insert into {schema}.processed_ahead (record, consumer) values (early, of) on conflict do nothing;
    end;
    return found;
end
$$;
revoke execute on function {schema}.processed_early(uuid, smallint) from public;

-- Records that the event was settled without a claim of its own (it failed, and is kept elsewhere), where the claim will look:
-- as record, or as hash where that has no day. Answers whether it is new.
create function {schema}.processed_settle(record uuid, hash uuid, of smallint) returns boolean language plpgsql
set search_path = pg_catalog, pg_temp as $$
declare
    minted timestamptz := to_timestamp(('x' || left(replace(record::text, '-', ''), 12))::bit(48)::bigint / 1000.0);
    fresh boolean;
begin
    if exists (select from {schema}.consumer c where c.id = of and minted < greatest(c.floor, c.since)) then
        record := hash;
    end if;
    begin
        insert into {schema}.processed (event_id, consumer) values (record, of) on conflict do nothing;
        return found;
    exception when check_violation then -- no day
    end;
    insert into {schema}.processed (event_id, consumer) values (hash, of) on conflict do nothing;
    fresh := found;
    return {schema}.processed_early(record, of) and fresh;
end
$$;
revoke execute on function {schema}.processed_settle(uuid, uuid, smallint) from public;

do $$
declare
    today date := (now() at time zone 'UTC')::date;
    day date;
    g record;
begin
    execute format('create table {schema}.processed_old partition of {schema}.processed for values from (minvalue) to (%L)',
        {schema}.processed_bound(today - 1));
    -- As the function does, which finds no day to begin with. And what clocks that were ahead have left, while such a day has
    -- a name of eight digits.
    for day in
        select today + n from generate_series(-1, 7) n union
        select (to_timestamp(('x' || left(replace(event_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) at time zone 'UTC')::date
        from {schema}.processed_before
        where event_id >= {schema}.processed_bound(today + 8) and event_id < {schema}.processed_bound('9999-12-31')
    loop
        execute format('create table {schema}.processed_%s partition of {schema}.processed for values from (%L) to (%L)',
            to_char(day, 'YYYYMMDD'), {schema}.processed_bound(day), {schema}.processed_bound(day + 1));
    end loop;
    insert into {schema}.processed (event_id, consumer, claimed_at)
    select event_id, consumer, claimed_at from {schema}.processed_before
    where event_id < {schema}.processed_bound('9999-12-31') or event_id >= 'ff000000-0000-0000-0000-000000000000';

    for g in
        select a.privilege_type as privilege, case a.grantee when 0 then 'public' else a.grantee::regrole::text end as grantee
        from pg_class c, aclexplode(c.relacl) a where c.oid = '{schema}.processed_before'::regclass and a.grantee <> c.relowner
    loop
        execute format('grant %s on {schema}.processed to %s', g.privilege, g.grantee);
        if g.privilege = 'INSERT' then
            execute format('grant execute on function {schema}.processed_days(int), {schema}.processed_settle(uuid, uuid, smallint),
                {schema}.processed_early(uuid, smallint) to %s', g.grantee);
            execute format('grant select, insert on {schema}.processed_ahead to %s', g.grantee);
        end if;
    end loop;
end
$$;

drop table {schema}.processed_before;
