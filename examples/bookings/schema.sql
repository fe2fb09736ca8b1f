-- The tables of this example's services. No unique constraint prevents a duplicate, so that it shows.
create table bookings (
    id         uuid primary key,
    client_key text not null, -- the Idempotency-Key, for the verdict
    sailing    text not null,
    guest      text not null,
    cabin      text not null
);

create table passenger_manifest (
    sailing    text not null,
    booking_id uuid not null,
    guest      text not null,
    cabin      text not null
);

-- One row for each time that a handler counted a passenger.
create table embarkations (
    sailing    text not null,
    booking_id uuid not null
);

create table sailings (
    sailing    text primary key,
    passengers bigint not null default 0
);
