-- Events whose handlers failed, dead letters, and processes that were killed. New tables only, so it is safe beside a running
-- service. Programs of version 1 go on beside it: their failing events are redelivered by the broker alone.
-- oldest program: 1

-- What the errors of events that failed alike have in common: the reason, and the error without numbers, IDs and quoted text.
create function {schema}.claim_failed_alike(reason text, error text) returns text language sql immutable parallel safe
as $f$ select reason || case error when '' then '' else ': ' end ||
    {alike}case when error like 'claim event "%' then regexp_replace(error, '^claim event "(\\.|[^"\\])*" for consumer "(\\.|[^"\\])*": ', '') else error end{/alike} $f$;

-- Events that were not handled. One that was acked (waiting, parked, dead) has its record in processed too, which absorbs
-- what the broker redelivers; from here it is brought back by Millrace alone.
create table {schema}.claim_failed (
    id         bigint      generated always as identity primary key, -- the order within a key
    consumer   smallint    not null,
    record     uuid        not null,             -- as in processed
    event_id   text        not null,
    key        text        not null default '',  -- the ordering key where order matters, else ''
    state      text        not null check (state in (
        'failing',                               -- it failed and was nacked: the broker redelivers it
        'waiting',                               -- it is tried again at due_at, from here
        'parked',                                -- it waits behind an earlier event of its key
        'dead')),                                -- it failed too often or can never succeed: an operator decides
    attempts   int         not null default 0,
    reason     text        not null default '',  -- why it is here, in one word
    error      text        not null default '',  -- of the last attempt
    history    jsonb       not null default '[]', -- the last attempts: when, where, which error
    handler    text        not null default '',
    topic      text        not null default '',
    headers    bytea,                            -- null while it is failing: the broker has it
    payload    bytea,
    replayed   boolean     not null default false, -- an operator has vouched for it: the window does not bind it
    first_at   timestamptz not null default now(),
    failed_at  timestamptz not null default now(),
    due_at     timestamptz,                      -- not before then, and not while somebody has it in hand
    error_group text not null generated always as (left(md5({schema}.claim_failed_alike(reason, error)), 8)) stored,
    unique (consumer, record)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index claim_failed_key on {schema}.claim_failed (consumer, key, id) where key <> '';
create index claim_failed_due on {schema}.claim_failed (consumer, due_at) where state = 'waiting';
create index claim_failed_state on {schema}.claim_failed (state, failed_at);
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

-- Keys that are held up. Whoever parks an event, and whoever takes the last one away, locks the row; the key is free
-- when it is gone.
create table {schema}.claim_key (
    consumer smallint not null,
    key      text     not null,
    primary key (consumer, key)
);

-- What operators did to dead letters.
create table {schema}.claim_audit (
    id       bigint      generated always as identity primary key,
    at       timestamptz not null default now(),
    actor    text        not null,
    action   text        not null,               -- edit, replay, discard
    consumer text        not null,
    event_id text        not null,
    detail   jsonb       not null default '{}'
);

-- Processes that run consumers. A row that no heartbeat renews is one that was killed.
create table {schema}.claim_run (
    id         bigint      generated always as identity primary key,
    service    text        not null,             -- its processes alone mind that this one was killed
    name       text        not null,             -- host and process, for people
    started_at timestamptz not null default now(),
    beat_at    timestamptz not null default now()
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
