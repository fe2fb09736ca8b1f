-- The tables of both services. The notifications have no unique constraint, so that a duplicate shows.
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

-- For the consumer that first looks whether it has seen an event, and then writes.
create table seen (
    event_id text not null
);
