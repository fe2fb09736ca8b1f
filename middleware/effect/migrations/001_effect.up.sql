-- The ledger of effects. New tables only, so it is safe beside a running service.

-- One row for each effect, in the partition of the UTC day of created_at. Days are made by effect_days and dropped whole.
-- What is unsettled, and what a dead letter needs, moves on to the present day before its own is dropped, and a repeated call begins in the present
-- day: so no unsettled row can appear in a day that is past.
create table {schema}.effect (
    created_at      timestamptz not null,
    key             text        not null,
    state           text        not null check (state in ('running', 'pending', 'doubt', 'done', 'not_done')),
    token           uuid        not null,            -- of the last call: only that one may say that nothing happened
    calls           int         not null,
    first_called_at timestamptz not null,
    called_at       timestamptz not null,
    until           timestamptz not null,            -- running, pending: when its time is up, and it is in doubt; doubt: since when
    response        bytea,
    reason          text        not null default '', -- of a doubt, or why nothing happened
    settled_by      text        not null default '', -- "call", "complete", "reconcile", or a person
    settled_at      timestamptz,
    conflicts       int         not null default 0,  -- calls that succeeded after another one had begun
    event_id        text        not null default '', -- the event whose handler called first; '' outside of a claim
    primary key (key, created_at)
) partition by range (created_at);
create index effect_unsettled on {schema}.effect (state, until) where state in ('running', 'pending', 'doubt') or conflicts > 0;
create index effect_called on {schema}.effect (called_at);
create index effect_event on {schema}.effect (event_id) where event_id <> '';

-- How long each service keeps its effects. Each renews its row about once an hour. Days are dropped by the longest.
create table {schema}.effect_retention (
    service    text        not null,
    keep       interval    not null,
    renewed_at timestamptz not null default now(),
    primary key (service, keep)                  -- a service that has changed it has two: processes with the old one may still run
);

-- What people decided, and whose response they saw.
create table {schema}.effect_resolution (
    id          bigint      generated always as identity primary key,
    resolved_at timestamptz not null default now(),
    action      text        not null default 'resolve', -- resolve, reveal
    key         text        not null,
    state       text        not null,
    before      text        not null, -- the state that it was in
    reason      text        not null, -- of the doubt
    resolved_by text        not null,
    db_user     text        not null default session_user,
    note        text        not null
);
create index effect_resolution_key on {schema}.effect_resolution (key);

-- Makes the days from yesterday to so many ahead that are missing. With its owner's rights, because a consumer has none to
-- create tables. A day is made alone and then attached, which waits for no running statement and holds none up.
create function {schema}.effect_days(ahead int) returns void language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '2s' set timezone = 'UTC' as $$
declare
    day  date;
    name text;
begin
    perform pg_advisory_xact_lock(hashtextextended('{schema}.effect_days', 0));
    for day in select current_date + n from generate_series(-1, ahead) n loop
        name := 'effect_' || to_char(day, 'YYYYMMDD');
        if to_regclass('{schema}.' || name) is null then
            execute format('create table {schema}.%s (like {schema}.effect including all)', name);
            execute format('alter table {schema}.effect attach partition {schema}.%s for values from (%L) to (%L)',
                name, day::timestamptz, (day + 1)::timestamptz);
        end if;
    end loop;
end
$$;
revoke execute on function {schema}.effect_days(int) from public;
select {schema}.effect_days(7);
