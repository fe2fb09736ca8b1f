-- What the two services of this example keep. No unique constraint stands on the notifications: a double must show.
create table labours (
    id           bigint primary key,
    mother       text not null,
    completed_at timestamptz
);

create table contractions (
    labour_id bigint not null references labours,
    began_at  timestamptz not null,
    ended_at  timestamptz
);

create table subscribers (
    labour_id bigint not null references labours,
    phone     text not null
);

create table notifications (
    labour_id bigint not null,
    phone     text not null,
    text      text not null
);

-- Of the consumer that looks first and writes later.
create table seen (
    event_id text not null
);
