-- The record of processed events, events whose handlers failed, dead letters, and processes that were killed. New tables only,
-- so it is safe beside a running service.

-- Consumers by a small number, because the record has one row per consumer and event.
create table {schema}.consumer (
    id    smallint generated always as identity primary key,
    name  text     not null unique,
    floor timestamptz,                           -- an older event cannot be proved new: the days before were dropped. Null: none was since the consumer is there
    since timestamptz                            -- the floor of others when the consumer came: the records of older events are among the hashes
);

-- A row is inserted in the transaction of the handler's writes: that it is there means that the event was processed. By day,
-- so that retention drops a day and deletes no row.
create table {schema}.processed (
    event_id   uuid        not null,             -- the UUIDv7 itself, with the due time of a delayed one; else a hash that begins with ff
    consumer   smallint    not null,
    claimed_at timestamptz not null default now(),
    kept       boolean,                          -- not written by the transaction that handled the event, so claimed_at is not when that was
    primary key (event_id, consumer)
) partition by range (event_id);

-- How long each service keeps its records. Each renews its row about once an hour. Days are dropped by the longest.
create table {schema}.processed_retention (
    service    text        not null,
    keep       interval    not null,
    renewed_at timestamptz not null default now(),
    primary key (service, keep)                  -- a service that has changed it has two: processes with the old one may still run
);

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
                insert into %s (event_id, consumer, kept) select record, consumer, true from due',
                {schema}.processed_bound(day), {schema}.processed_bound(day + 1), name);
            execute format('alter table {schema}.processed attach partition %s for values from (%L) to (%L)',
                name, {schema}.processed_bound(day), {schema}.processed_bound(day + 1));
        end if;
    end loop;
end
$$;
revoke execute on function {schema}.processed_days(int) from public;

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
        insert into {schema}.processed (event_id, consumer, kept) values (record, of, true) on conflict do nothing;
        return found;
    exception when check_violation then -- no day
    end;
    insert into {schema}.processed (event_id, consumer, kept) values (hash, of, true) on conflict do nothing;
    fresh := found;
    return {schema}.processed_early(record, of) and fresh;
end
$$;
revoke execute on function {schema}.processed_settle(uuid, uuid, smallint) from public;

-- Says why a claim is refused, or fails with it. A pipeline ends at the failure.
create function {schema}.claim_refused(reason text, fails boolean) returns text language plpgsql
set search_path = pg_catalog, pg_temp as $$
begin
    if fails then
        raise exception 'the claim of the event is refused: %', reason using errcode = 'MR001', detail = reason;
    end if;
    return reason;
end
$$;

-- Forgets that an event has failed before; it is called in its claim, and says that nothing speaks against it.
create function {schema}.claim_forgotten(of smallint, event uuid) returns text language plpgsql
set search_path = pg_catalog, pg_temp as $$
begin
    delete from {schema}.claim_failed where consumer = of and record = event and state = 'nacked';
    return '';
end
$$;

do $$
declare
    today date := (now() at time zone 'UTC')::date;
begin
    execute format('create table {schema}.processed_old partition of {schema}.processed for values from (minvalue) to (%L)',
        {schema}.processed_bound(today - 1));
    for n in -1..7 loop -- as the function does, which finds no day to begin with
        execute format('create table {schema}.processed_%s partition of {schema}.processed for values from (%L) to (%L)',
            to_char(today + n, 'YYYYMMDD'), {schema}.processed_bound(today + n), {schema}.processed_bound(today + n + 1));
    end loop;
end
$$;

-- What the errors of events that failed alike have in common: the reason, and the error without numbers, IDs and quoted text.
create function {schema}.claim_failed_alike(reason text, error text) returns text language sql immutable parallel safe
as $f$ select reason || case error when '' then '' else ': ' end ||
    {alike}case when error like 'claim event "%' then regexp_replace(error, '^claim event "(\\.|[^"\\])*" for consumer "(\\.|[^"\\])*": ', '') else error end{/alike} $f$;

-- Events that were not handled. One that was acked (retrying, blocked, dead) has its record in processed too, which absorbs
-- what the broker redelivers; from here it is brought back by Millrace alone.
create table {schema}.claim_failed (
    id         bigint      generated always as identity primary key, -- the order within a key
    consumer   smallint    not null,
    record     uuid        not null,             -- as in processed
    event_id   text        not null,
    key        text        not null default '',  -- the ordering key where order matters, else ''
    state      text        not null check (state in (
        'nacked',                                -- it failed and was nacked: the broker redelivers it
        'retrying',                              -- it is tried again at due_at, from here
        'blocked',                               -- it waits behind an earlier event of its key
        'dead')),                                -- it failed too often or can never succeed: an operator decides
    attempts   int         not null default 0,
    reason     text        not null default '',  -- why it is here, in one word
    error      text        not null default '',  -- of the last attempt
    history    jsonb       not null default '[]', -- the last attempts: when, where, which error
    handler    text        not null default '',
    topic      text        not null default '',
    headers    bytea,                            -- null while it is nacked: the broker has it
    payload    bytea,
    replayed   boolean     not null default false, -- an operator has vouched for it: the window does not bind it
    first_at   timestamptz not null default now(),
    failed_at  timestamptz not null default now(),
    due_at     timestamptz,                      -- not before then, and not while somebody has it in hand
    error_group text not null generated always as (left(md5({schema}.claim_failed_alike(reason, error)), 8)) stored,
    unique (consumer, record)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index claim_failed_key on {schema}.claim_failed (consumer, key, id) where key <> '';
create index claim_failed_due on {schema}.claim_failed (consumer, due_at) where state = 'retrying';
create index claim_failed_state on {schema}.claim_failed (state, failed_at);
create index claim_failed_consumer on {schema}.claim_failed (consumer, state, id);
create index claim_failed_group on {schema}.claim_failed (error_group, state, id);
create index claim_failed_event on {schema}.claim_failed (event_id text_pattern_ops);

-- How many events failed, so that nobody must count them: the sum of events. Whoever changes claim_failed inserts what it
-- adds or takes away, and locks nothing; claim_failed_fold makes one row of many.
create table {schema}.claim_failed_count (
    consumer    smallint    not null,
    state       text        not null,
    error_group text        not null,
    events      bigint      not null,            -- less than 0: taken away
    last_at     timestamptz not null             -- when the last one was added, or taken away
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

create function {schema}.claim_failed_counted() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    case tg_op
    when 'INSERT' then
        insert into {schema}.claim_failed_count select consumer, state, error_group, count(*), now() from added group by 1, 2, 3;
    when 'DELETE' then
        insert into {schema}.claim_failed_count select consumer, state, error_group, -count(*), now() from gone group by 1, 2, 3;
    else
        insert into {schema}.claim_failed_count
        select consumer, state, error_group, sum(n), now() from (
            select consumer, state, error_group, 1 as n from added union all select consumer, state, error_group, -1 from gone) changed
        group by 1, 2, 3 having sum(n) <> 0;
    end case;
    return null;
end
$$;
create trigger claim_failed_added after insert on {schema}.claim_failed referencing new table as added
    for each statement execute function {schema}.claim_failed_counted();
create trigger claim_failed_changed after update on {schema}.claim_failed referencing old table as gone new table as added
    for each statement execute function {schema}.claim_failed_counted();
create trigger claim_failed_gone after delete on {schema}.claim_failed referencing old table as gone
    for each statement execute function {schema}.claim_failed_counted();

-- Makes one row of many, at most 100,000, of those that nobody else folds at this moment. It waits for nobody.
create function {schema}.claim_failed_fold() returns void language sql security definer
set search_path = pg_catalog, pg_temp as $$
    with folded as (
        delete from {schema}.claim_failed_count where ctid = any (array(
            select ctid from {schema}.claim_failed_count limit 100000 for update skip locked))
        returning consumer, state, error_group, events, last_at
    )
    insert into {schema}.claim_failed_count
    select consumer, state, error_group, sum(events), coalesce(max(last_at) filter (where events > 0), max(last_at))
    from folded group by 1, 2, 3 having sum(events) <> 0
$$;
revoke execute on function {schema}.claim_failed_counted(), {schema}.claim_failed_fold() from public;

-- Keys that are held up. Whoever blocks an event, and whoever takes the last one away, locks the row; the key is free
-- when it is gone.
create table {schema}.claim_key (
    consumer smallint not null,
    key      text     not null,
    waiting  int,                                -- at least how many of its events are blocked, where that is limited. Null: nobody has counted
    full_since timestamptz,                      -- since then no more are kept: the broker keeps them
    primary key (consumer, key)
);
create index claim_key_full on {schema}.claim_key (full_since) where full_since is not null;

-- What operators did to dead letters.
create table {schema}.claim_audit (
    id       bigint      generated always as identity primary key,
    at       timestamptz not null default now(),
    actor    text        not null,
    action   text        not null,               -- edit, replay, discard, reveal
    consumer text        not null,
    event_id text        not null,
    detail   jsonb       not null default '{}'
);
create index claim_audit_event on {schema}.claim_audit (event_id, id);

-- Replays of dead letters that keep a pace. Whoever continues one locks its row for each step.
create table {schema}.claim_replay (
    id         bigint      generated always as identity primary key,
    actor      text        not null,
    note       text        not null,
    selection  jsonb       not null,
    rate       int         not null,             -- events a second; 0: no limit
    max_failed float8      not null,             -- it stops when a larger share of what was tried again has failed; 1: it never does
    state      text        not null default 'running' check (state in ('running', 'stopped', 'done')),
    reason     text        not null default '',  -- why it was stopped
    above      bigint      not null default 0,   -- events up to this one have had their turn
    up_to      bigint      not null,             -- the last event that has its turn
    selected   bigint      not null,             -- when it began
    replayed   bigint      not null default 0,
    in_flight  bigint      not null default 0,   -- left alone: somebody had them in hand
    started_at timestamptz not null default now(),
    stepped_at timestamptz not null default now(),
    due_at     timestamptz not null default now(), -- the next step comes not before then
    ended_at   timestamptz
);
create index claim_replay_running on {schema}.claim_replay (id) where state = 'running';

-- Events that such a replay has had tried again, by claim_failed's primary key, until somebody looks who finds them handled. An
-- index of claim_failed's own would cost each claim a lock.
create table {schema}.claim_replay_event (
    id     bigint primary key,
    replay bigint not null
);
create index claim_replay_event_replay on {schema}.claim_replay_event (replay, id);

-- How many of them an operator has replayed again or discarded before they were handled. Inserted, never updated: two replays
-- would wait for each other.
create table {schema}.claim_replay_superseded (
    replay bigint not null,
    events bigint not null
);
create index claim_replay_superseded_replay on {schema}.claim_replay_superseded (replay);

-- Processes that run consumers. A row that no heartbeat renews is one that was killed.
create table {schema}.claim_run (
    id         bigint      generated always as identity primary key,
    service    text        not null,             -- its processes alone mind that this one was killed
    name       text        not null,             -- host and process, for people
    started_at timestamptz not null default now(),
    beat_at    timestamptz not null default now(),
    paused     jsonb       not null default '[]'  -- its consumers that are paused: since how many seconds before beat_at, for how many more, and why
);

-- What a process that came after one that was killed has in hand.
create table {schema}.claim_start (
    consumer smallint not null,
    record   uuid     not null,
    run      bigint   not null,                  -- who has it in hand, or had when it was killed
    starts   int      not null,                  -- how often it was begun alone and not ended
    noted_at timestamptz not null default now(),
    primary key (consumer, record)
);

-- What each process counted for its consumers, by the minute in which it wrote that, so that a person sees rates without a row for
-- each event. A process adds to its own rows alone, about every 10 s, so processes never wait for each other.
create table {schema}.journal (
    minute     timestamptz not null,
    consumer   smallint    not null,
    run        bigint      not null,             -- claim_run's
    handled    int         not null,
    duplicates int         not null,
    contended  int         not null,
    failed     int         not null,             -- deliveries whose handler, or whose claim, failed
    busy_ms    bigint      not null,             -- the sum of how long the handled ones took, with their transactions
    longest_ms int         not null,             -- the longest of them
    primary key (minute, consumer, run)
) partition by range (minute);

-- Makes the days that are missing, from yesterday to so many from today. With its owner's rights, because a consumer has none to
-- create tables. A partition that is attached, and not created as one, holds up no process that counts. Room in each page lets the
-- updates of a minute stay there. It gives up rather than wait for long.
create function {schema}.journal_days(ahead int) returns void language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '2s' set timezone = 'UTC' as $$
declare
    day date;
    name text;
begin
    perform pg_advisory_xact_lock(hashtextextended('{schema}.journal', 0));
    for day in select current_date + n from generate_series(-1, ahead) n loop
        name := format('{schema}.journal_%s', to_char(day, 'YYYYMMDD'));
        if to_regclass(name) is null then
            execute format('create table %s (like {schema}.journal including all) with (fillfactor = 70)', name);
            execute format('alter table {schema}.journal attach partition %s for values from (%L) to (%L)', name, day::timestamptz, (day + 1)::timestamptz);
        end if;
    end loop;
end
$$;
revoke execute on function {schema}.journal_days(int) from public;
select {schema}.journal_days(7);
