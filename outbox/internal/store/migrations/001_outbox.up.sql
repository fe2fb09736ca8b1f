-- The outbox, its failed, delayed and archived events, its shards and relays. New tables only, so it is safe beside a running
-- service.

-- A row that exists is unpublished.
create table {schema}.outbox (
    shard      smallint    not null,             -- outbox_shard_of(hash of the key): the unit of order and of work
    seq        bigint      not null,             -- from the shard's own sequence
    event_id   text        not null,
    topic      text        not null,
    key        text        not null,             -- '' when the event has none
    headers    bytea       not null,             -- metadata as JSON; bytea because jsonb costs the writer up to half
    payload    bytea       not null,
    created_at timestamptz not null default now(),
    replayed   boolean     not null default false -- it is in the archive: an operator has replayed it from there
) with (
    -- A queue: rows live for milliseconds, so vacuum by count and not by a share of a table that is usually empty.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0
);

-- The only index. Not unique: sequences that were set back must not stop the producers.
create index outbox_shard_seq on {schema}.outbox (shard, seq);

-- How many events a shard holds, counted up to some, when the oldest was written, and when the oldest one that neither is of one of
-- the topics nor waits for one of their events. With its owner's rights, because health checks run as writers, who may not read
-- topics and keys.
create function {schema}.outbox_waiting(shard smallint, up_to bigint, topics text[])
returns table (pending bigint, oldest timestamptz, moving timestamptz) language sql stable security definer
set search_path = pg_catalog, pg_temp as $$
    select count(*), min(e.created_at), min(e.created_at) filter (where not e.held_up)
    from (
        select o.created_at, o.topic = any($3) or o.key <> '' and bool_or(o.topic = any($3)) over (partition by o.key order by o.seq) as held_up
        from (select w.seq, w.topic, w.key, w.created_at from {schema}.outbox w where w.shard = $1 order by w.seq limit $2) o
    ) e
$$;
revoke execute on function {schema}.outbox_waiting(smallint, bigint, text[]) from public;

-- The layout is part of the stored format: every writer must place a key on the same shard.
create table {schema}.outbox_layout (
    hash   text     not null, -- how a key becomes 63 bits: FNV-1a, 64 bits, upper half folded onto the lower one
    shards smallint not null
);
insert into {schema}.outbox_layout values ('fnv1a64', 16);

create sequence {schema}.outbox_seq_0;
create sequence {schema}.outbox_seq_1;
create sequence {schema}.outbox_seq_2;
create sequence {schema}.outbox_seq_3;
create sequence {schema}.outbox_seq_4;
create sequence {schema}.outbox_seq_5;
create sequence {schema}.outbox_seq_6;
create sequence {schema}.outbox_seq_7;
create sequence {schema}.outbox_seq_8;
create sequence {schema}.outbox_seq_9;
create sequence {schema}.outbox_seq_10;
create sequence {schema}.outbox_seq_11;
create sequence {schema}.outbox_seq_12;
create sequence {schema}.outbox_seq_13;
create sequence {schema}.outbox_seq_14;
create sequence {schema}.outbox_seq_15;

-- Functions, because PostgreSQL inlines them: the statement that calls them pays nothing, knows no number of shards, and
-- is planned anew, in every session and at every isolation level, once they are replaced. "millrace outbox shards" does.
create function {schema}.outbox_shard_of(hash bigint) returns smallint language sql immutable parallel safe
as 'select ($1 % 16)::smallint';

create function {schema}.outbox_next(shard smallint) returns bigint language sql volatile
as 'select nextval((array[
    ''{schema}.outbox_seq_0'', ''{schema}.outbox_seq_1'', ''{schema}.outbox_seq_2'', ''{schema}.outbox_seq_3'',
    ''{schema}.outbox_seq_4'', ''{schema}.outbox_seq_5'', ''{schema}.outbox_seq_6'', ''{schema}.outbox_seq_7'',
    ''{schema}.outbox_seq_8'', ''{schema}.outbox_seq_9'', ''{schema}.outbox_seq_10'', ''{schema}.outbox_seq_11'',
    ''{schema}.outbox_seq_12'', ''{schema}.outbox_seq_13'', ''{schema}.outbox_seq_14'', ''{schema}.outbox_seq_15''
    ]::regclass[])[$1 + 1])';

-- Events that could not be published, and those of the same key that wait behind them. Only the holder of the shard's
-- lease moves rows in and out; commands set flags.
create table {schema}.outbox_failed (
    id         bigint      generated always as identity primary key, -- the order within a key
    hash       bigint      not null,             -- of the key, or of the event ID without one
    shard      smallint    not null,
    seq        bigint      not null,             -- as it was in the outbox
    event_id   text        not null,
    topic      text        not null,
    key        text        not null,             -- '' when the event has none: then it waits alone
    headers    bytea       not null,
    payload    bytea       not null,
    created_at timestamptz not null,             -- when it was written to the outbox
    state      text        not null check (state in (
        'retrying',                              -- it failed, and is tried again at retry_at
        'blocked',                               -- it waits behind an earlier event of its key
        'dead',                                  -- it failed too often, or can never succeed: an operator decides
        'discarded')),                           -- an operator discarded it: it holds nothing up, and is kept to be seen
    attempts   int         not null default 0,
    reason     text        not null default '',
    failed_at  timestamptz not null default now(), -- when it came here
    retry_at   timestamptz,
    command    text        check (command in ('retry', 'discard', 'recover')), -- until the relay has carried it out; an operator's, or: its error has gone away
    replayed   boolean     not null default false -- as in the outbox
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
-- By the key's hash, because an index entry holds no more than about 2,700 bytes, and a key may be longer. Statements compare
-- the key, too.
create index outbox_failed_key on {schema}.outbox_failed (shard, hash, id) where state <> 'discarded';
create index outbox_failed_due on {schema}.outbox_failed (shard, retry_at) where state = 'retrying' or command is not null;
create index outbox_failed_dead on {schema}.outbox_failed (topic, id) where state = 'dead';
create index outbox_failed_state on {schema}.outbox_failed (state, id);
create index outbox_failed_event on {schema}.outbox_failed (event_id);

-- How far the events in the write-ahead log have been landed: made rows of the outbox. Whoever lands locks the row, and advances it in the
-- transaction that inserts the rows. Positions count only on this server and in this database, because a restored dump has those of another.
create table {schema}.outbox_landing (
    one        boolean     primary key default true check (one), -- there is one row
    system     text        not null,             -- the server's system identifier
    database   oid         not null,
    server     timestamptz not null,             -- start time of the server at which a relay created the slot or began to
    slot       text        not null,             -- the replication slot that keeps the WAL
    landed     pg_lsn,                           -- transactions whose commit begins before it have been landed; null: there is no slot yet
    part_of    pg_lsn      not null default '0/0', -- the commit of a large transaction that is landed in parts
    part       int         not null default 0,   -- how many of its messages have been landed
    landed_at  timestamptz not null default now(), -- when a relay last advanced it
    -- The last cut: WAL that was lost, with the events in it that were not landed.
    cuts       bigint      not null default 0,   -- how often there was one
    cut_at     timestamptz,
    cut_from   pg_lsn,
    cut_to     pg_lsn,                           -- where the new slot begins; null: there is none yet
    cut_reason text        not null default ''
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- The name of the replication slot that keeps events in the WAL. Names of slots are those of a server, so it has the database's number,
-- which stays when the database is renamed.
create function {schema}.outbox_landing_slot() returns text language sql stable parallel safe as $$
    select btrim('{schema}', '"') || '_log_' || oid from pg_database where datname = current_database()
$$;

-- Events that are to be delivered later. They enter the outbox when they are due; until then they can be cancelled.
create table {schema}.outbox_delayed (
    due_at     timestamptz not null,
    hash       bigint      not null,
    event_id   text        not null,
    topic      text        not null,
    key        text        not null,
    headers    bytea       not null,
    payload    bytea       not null,
    created_at timestamptz not null default clock_timestamp(),
    written_by text        not null default current_user -- the role that may cancel it
) with (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create index outbox_delayed_due on {schema}.outbox_delayed (due_at);
create index outbox_delayed_event on {schema}.outbox_delayed (event_id);

-- Deletes a delayed event that the caller's role has written, or a role whose rights it has; the tables' owner deletes any. With
-- its owner's rights, because writers have none to read or delete events. "role" is what SET ROLE has set.
create function {schema}.outbox_cancel(event_id text) returns bigint language sql volatile security definer
set search_path = pg_catalog, pg_temp as $$
    with caller as (
        select coalesce(nullif(current_setting('role'), 'none'), session_user)::name as role
    ), gone as (
        delete from {schema}.outbox_delayed d using caller
        where d.event_id = $1 and exists (
            select from pg_roles r where pg_has_role(caller.role, r.oid, 'usage')
            and (r.rolname = d.written_by or r.oid = (select relowner from pg_class where oid = '{schema}.outbox_delayed'::regclass)))
        returning 1
    )
    select count(*) from gone
$$;
revoke execute on function {schema}.outbox_cancel(text) from public;

-- What was published, for replay, when a relay is configured to keep it. Its days are made by outbox_archive_days.
create table {schema}.outbox_archive (
    published_at timestamptz not null default now(),
    shard        smallint    not null,
    seq          bigint      not null,
    event_id     text        not null,
    topic        text        not null,
    key          text        not null,
    headers      bytea       not null,
    payload      bytea       not null,
    created_at   timestamptz not null,
    relay        text        not null default '', -- the one that sent it, as its row names it
    attempts     int         not null default 1  -- how often it was sent alone or in a batch until the broker took it; outages do not count
) partition by range (published_at);
create index outbox_archive_event on {schema}.outbox_archive (event_id);
create index outbox_archive_published on {schema}.outbox_archive (published_at);

-- What operators did.
create table {schema}.outbox_audit (
    id     bigint      generated always as identity primary key,
    at     timestamptz not null default now(),
    actor  text        not null,
    action text        not null,               -- retry, discard, replay, stop replay, resume replay, change rate; of a topic pause, resume, redirect, end redirect, discard
    events bigint      not null,               -- how many it concerned; of a replay, how many were replayed so far
    detail jsonb       not null default '{}'
);

-- Replays that have not finished.
create table {schema}.outbox_replay (
    id           bigint      primary key,      -- as in outbox_audit
    topic        text,                         -- null: any
    key          text,                         -- null: any
    until        timestamptz not null,
    to_topic     text,                         -- null: each event's own
    -- The last archived event that it has read, in the archive's order.
    published_at timestamptz not null,
    created_at   timestamptz not null default '-infinity',
    seq          bigint      not null default 0,
    shard        smallint    not null default 0,
    rate         int         not null,         -- events a second at most; 0: no limit
    due          timestamptz not null default now(), -- when its next transaction may begin
    stopped_by   text,                         -- null: it may go on
    stepped_at   timestamptz not null default now(), -- when it last read the archive
    selected     bigint      not null,         -- among the newest events of the archive when it began
    more         boolean     not null          -- older ones may be selected, too
);
create index outbox_replay_running on {schema}.outbox_replay (id) where stopped_by is null;

-- Makes today's partition and those of the next three days, and drops those that ended longer ago than keep. With its
-- owner's rights, because a relay has none to create tables. Nobody who reads the archive keeps it from making days: ATTACH takes a
-- SHARE UPDATE EXCLUSIVE lock. Only a drop waits for readers, and whoever writes to the archive waits for the drop. So it gives up
-- after 100 ms, and a later call drops the day.
create function {schema}.outbox_archive_days(keep interval) returns void language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '2s' set timezone = 'UTC' as $$
declare
    day  date;
    name text;
    old  regclass;
begin
    if not pg_try_advisory_xact_lock(hashtextextended('{schema}.outbox_archive', 0)) then
        return; -- another relay does it
    end if;
    for day in select current_date + n from generate_series(0, 3) n loop
        name := 'outbox_archive_' || to_char(day, 'YYYYMMDD');
        if to_regclass('{schema}.' || name) is null then
            execute format('create table {schema}.%I (like {schema}.outbox_archive including all)', name);
            execute format('alter table {schema}.outbox_archive attach partition {schema}.%I for values from (%L) to (%L)',
                name, day::timestamptz, (day + 1)::timestamptz);
        end if;
    end loop;
    for old in
        select c.oid::regclass from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = '{schema}.outbox_archive'::regclass and c.relname ~ '_[0-9]{8}$'
        and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= now() - keep
    loop
        perform set_config('lock_timeout', '100ms', true);
        begin
            execute format('drop table %s', old);
        exception when lock_not_available then
            return;
        end;
    end loop;
end
$$;
revoke execute on function {schema}.outbox_archive_days(interval) from public;

-- What operators have set for topics. A topic for which nothing is set has no row.
create table {schema}.outbox_topic (
    topic         text        primary key,
    paused_at     timestamptz,                     -- null: it is not paused
    paused_by     text        not null default '', -- who paused it
    pause_note    text        not null default '', -- why
    redirect_to   text,                            -- the topic that its events are published to; null: itself
    redirected_at timestamptz,
    redirected_by text        not null default '',
    redirect_note text        not null default ''
);

-- Moves pending events of a paused topic to the failed ones as discarded, by their shard, numbers, IDs and the hashes of their keys,
-- and counts them. With its owner's rights, because an operator may not delete events: what is discarded is kept.
create function {schema}.outbox_discard(shard smallint, seqs bigint[], ids text[], hashes bigint[], reason text) returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    with gone as (
        delete from {schema}.outbox o
        where o.ctid = any (array(
            select place
            from unnest($2, $3) as d (seq, event_id)
            cross join lateral (
                select p.ctid as place from {schema}.outbox p
                where p.shard = $1 and p.seq = d.seq and p.event_id = d.event_id
                offset 0 -- one look into the index for each, as in delete_moved.sql
            ) as there))
          and exists (select from {schema}.outbox_topic t where t.topic = o.topic and t.paused_at is not null)
        returning o.shard, o.seq, o.event_id, o.topic, o.key, o.headers, o.payload, o.created_at, o.replayed
    ), moved as (
        insert into {schema}.outbox_failed (hash, shard, seq, event_id, topic, key, headers, payload, created_at, state, reason, replayed)
        select m.hash, g.shard, g.seq, g.event_id, g.topic, g.key, g.headers, g.payload, g.created_at, 'discarded', $5, g.replayed
        from unnest($2, $3, $4) with ordinality as m (seq, event_id, hash, place)
        join gone g on g.seq = m.seq and g.event_id = m.event_id
        order by m.place
        returning 1
    )
    select count(*) from moved
$$;
revoke execute on function {schema}.outbox_discard(smallint, bigint[], text[], bigint[], text) from public;

-- The relays that run. One that stops renewing its row expires, by the server's clock alone.
create table {schema}.outbox_relay (
    relay_id   uuid        primary key,
    expires_at timestamptz not null,
    name       text        not null default '', -- host and process, for people
    struggling boolean     not null default false, -- it gets nothing published: others take its shards
    shunned    int         not null default 0, -- how many shards it leaves to others, because its publisher did not return
    seen_at    timestamptz not null default now(), -- when it renewed this row
    topics     jsonb       not null default '[]' -- why events of topics wait in it
);

-- What each relay counted by topic, in the minute in which it wrote that, so that a person sees rates without a row for each event. A relay
-- adds to its own rows alone, about every 10 s, so relays never wait for each other. Who writes drops what is older than an hour.
create table {schema}.outbox_journal (
    minute    timestamptz not null,
    topic     text        not null,            -- '': the topics beyond the first 100 of a relay
    relay_id  uuid        not null,
    published bigint      not null,            -- events that the broker took
    failed    bigint      not null,            -- attempts that failed; those of an outage, too
    primary key (minute, topic, relay_id)
) with (fillfactor = 70, -- the updates of a minute stay in their page
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The broker that events are published to while a fleet goes from one to another, and afterwards. No row: that of each configuration.
create table {schema}.outbox_broker (
    one        boolean     primary key default true check (one), -- there is one row
    epoch      bigint      not null,             -- counts the steps
    from_name  text        not null,
    to_name    text        not null,
    phase      text        not null check (phase in ('consume', 'drain', 'publish', 'cut', 'return')),
    changed_at timestamptz not null default now()
);

-- The processes that take part in the migration to another broker, and what they read there.
create table {schema}.outbox_broker_process (
    process_id uuid        primary key,
    name       text        not null,             -- host and process, as in outbox_relay
    service    text        not null,
    from_name  text        not null,
    to_name    text        not null,
    started_at timestamptz not null default now(),
    expires_at timestamptz not null,             -- what it publishes afterwards does not count
    epoch      bigint      not null,             -- of the newest step that it knows, when it has nothing in flight from before that
    epoch_at   timestamptz not null default now(), -- since when
    consumers  jsonb       not null,             -- the topics and groups that it reads from both brokers
    from_busy  timestamptz not null default now(), -- when it last had a message of that broker, or could not reach it
    to_busy    timestamptz not null default now()
);

-- Which relay holds which shard. Leases are for order and economy, never for safety.
create table {schema}.outbox_shard (
    shard      smallint    primary key,
    relay_id   uuid,
    term       bigint      not null default 0,   -- how many leases there were
    expires_at timestamptz not null default '-infinity',
    deaths     uuid[]      not null default '{}', -- relays that ended while they held the shard, since events were last deleted
    noted      text,                           -- the event that the relay is sending alone, noted before
    suspect    text,                           -- the event that relays had noted when they ended
    suspect_deaths uuid[]  not null default '{}' -- these relays
) with (fillfactor = 50, -- renewals are heap-only updates
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

insert into {schema}.outbox_shard (shard) select generate_series(0, 15);

do $$
declare
    t text;
begin
    foreach t in array array['outbox', 'outbox_failed', 'outbox_delayed', 'outbox_archive'] loop
        execute format('alter table {schema}.%I alter column payload set compression lz4', t);
    end loop;
exception when others then -- a server built without lz4: pglz does it too, slower
    null;
end
$$;
