-- The tables of this example's services. No unique constraint prevents a duplicate, so that it shows.
create table payments (
    id         uuid primary key,
    event_id   uuid not null,
    client_key text not null, -- the Idempotency-Key, for the verdict
    account    text not null,
    cents      bigint not null
);

create table accounts (
    account text primary key,
    balance bigint not null default 0,
    points  bigint not null default 0
);

-- One row for each time that a handler booked a payment.
create table bookings (
    book       text not null, -- balance or points
    payment_id uuid not null
);
