-- The schedules of services. A new table only, so it is safe beside a running service.

create table {schema}.schedule (
    service    text        not null,
    name       text        not null,
    expression text        not null, -- that of the process which was started last
    time_zone  text        not null, -- of the expression
    due_after  timestamptz not null, -- the latest time that was fired, or when the schedule began: times after it are due
    fired_at   timestamptz,          -- when that was; null: the schedule has not fired yet
    primary key (service, name)
);
