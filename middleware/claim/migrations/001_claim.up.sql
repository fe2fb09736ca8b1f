-- The processed-events record. New tables only, so it is safe beside a running service.

-- Consumers by a small number, because the record has one row per consumer and event.
create table {schema}.consumer (
    id   smallint generated always as identity primary key,
    name text     not null unique
);

-- A row is inserted in the transaction of the handler's writes: that it is there means that the event was processed.
create table {schema}.processed (
    event_id   uuid        not null,             -- the UUIDv7 itself, else a hash that begins with ff
    consumer   smallint    not null,
    claimed_at timestamptz not null default now(),
    primary key (event_id, consumer)             -- UUIDv7 first: inserts go to the end of the index
);
