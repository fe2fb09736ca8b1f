-- Events whose handlers failed, dead letters, and processes that were killed. New tables only, so it is safe beside a running
-- service. Programs of version 1 go on beside it: their failing events are redelivered by the broker alone.
-- oldest program: 1

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
    unique (consumer, record)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index claim_failed_key on {schema}.claim_failed (consumer, key, id) where key <> '';
create index claim_failed_due on {schema}.claim_failed (consumer, due_at) where state = 'waiting';

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
