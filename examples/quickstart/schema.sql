-- The tables of this example's services. The notifications have no unique constraint, so that a duplicate shows.
create table labours (
    id           bigint primary key,
    mother       text not null,
    completed_at timestamptz,
    thanks       int not null default 0          -- how often say-thanks counted it
);

create table notifications (
    labour_id bigint not null references labours,
    event_id  text   not null,
    text      text   not null
);
