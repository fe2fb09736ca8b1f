-- The stored answers of HTTP requests. New tables only, so it is safe beside a running service.

-- A row is inserted in the transaction of the handler's writes: that it is there means that the request was answered.
create table {schema}.idempotency_key (
    id          bytea       not null, -- SHA-256 of schema, service, scope and key
    day         date        not null default (now() at time zone 'utc')::date, -- a repeated request may meet another day than its own
    created_at  timestamptz not null default now(),
    service     text        not null,
    scope       bytea       not null, -- 8 bytes of SHA-256 of the scope, which may be a secret: tells callers apart, for people
    key         text        not null, -- as the client sent it, for people
    request     text        not null, -- method and path, for people
    fingerprint bytea       not null, -- SHA-256 of method, host, path, query and content: see fingerprint.go
    status      smallint    not null,
    headers     bytea       not null, -- those that the handler set, as lines "Name: value"
    body        bytea       not null,
    primary key (id, day)
) partition by range (day);

-- For lists, which show the latest. Inserts go to its end.
create index on {schema}.idempotency_key (created_at);

-- How long each service keeps its answers. Each renews its row about once an hour. Days are dropped by the longest.
create table {schema}.idempotency_key_retention (
    service    text        not null,
    keep       interval    not null,
    renewed_at timestamptz not null default now(),
    primary key (service, keep)                  -- a service that has changed it has two: processes with the old one may still run
);

-- What operators did to answers.
create table {schema}.idempotency_key_audit (
    id          bigint      generated always as identity primary key,
    at          timestamptz not null default now(),
    actor       text        not null,
    db_user     text        not null default session_user,
    action      text        not null, -- forget, reveal
    service     text        not null,
    key         text        not null,
    request     text        not null,
    status      smallint    not null,
    answered_at timestamptz not null,
    note        text        not null
);

do $$
begin
    alter table {schema}.idempotency_key alter column body set compression lz4;
exception when others then -- a server older than 14 or built without lz4: pglz does it too, slower
    null;
end
$$;

-- Makes the partitions of yesterday to the days ahead that are missing. With its owner's rights, because a service has none to
-- create tables. It blocks no request: ATTACH takes a SHARE UPDATE EXCLUSIVE lock on the parent, where CREATE TABLE …
-- PARTITION OF would wait for every transaction that has looked at it, and everybody else for that. There is no default
-- partition: one row of tomorrow's in it would forbid to make tomorrow.
create function {schema}.idempotency_key_days(ahead int) returns void language plpgsql security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '2s' set timezone = 'UTC' as $$
declare
    d    date;
    name text;
begin
    perform pg_advisory_xact_lock(hashtextextended('{schema}.idempotency_key', 0));
    for d in select current_date + n from generate_series(-1, ahead) n loop
        name := 'idempotency_key_' || to_char(d, 'YYYYMMDD');
        if to_regclass('{schema}.' || name) is null then
            execute format('create table {schema}.%I (like {schema}.idempotency_key including all)', name);
            execute format('alter table {schema}.idempotency_key attach partition {schema}.%I for values from (%L) to (%L)', name, d, d + 1);
        end if;
    end loop;
end
$$;
revoke execute on function {schema}.idempotency_key_days(int) from public;

select {schema}.idempotency_key_days(7);
