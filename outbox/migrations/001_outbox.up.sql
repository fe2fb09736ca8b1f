-- The outbox: a row that exists is unpublished. New tables only, so it is safe beside a running service.

create table {schema}.outbox (
    shard      smallint    not null,             -- hash(key) mod 16: the unit of order and of work
    seq        bigint      not null,             -- from the shard's own sequence
    event_id   text        not null,
    topic      text        not null,
    key        text        not null,             -- '' when the event has none
    headers    bytea       not null,             -- metadata as JSON; bytea because jsonb costs the writer up to half
    payload    bytea       not null,
    created_at timestamptz not null default now()
) with (
    -- A queue: rows live for milliseconds, so vacuum by count and not by a share of a table that is usually empty.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0
);

-- The only index. Not unique: sequences that were set back must not stop the producers.
create index outbox_shard_seq on {schema}.outbox (shard, seq);

do $$
begin
    alter table {schema}.outbox alter column payload set compression lz4;
exception when others then -- a server older than 14 or built without lz4: pglz does it too, slower
    null;
end
$$;

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

-- Who is there. A relay that stops renewing expires, by the server's clock alone.
create table {schema}.outbox_relay (
    relay_id   uuid        primary key,
    expires_at timestamptz not null
);

-- Who relays which shard. Leases are for order and economy, never for safety.
create table {schema}.outbox_shard (
    shard      smallint    primary key,
    relay_id   uuid,
    expires_at timestamptz not null default '-infinity'
) with (fillfactor = 50); -- renewals are heap-only updates

insert into {schema}.outbox_shard (shard) select generate_series(0, 15);
