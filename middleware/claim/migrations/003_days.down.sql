-- One table again. Its rows are copied, and nobody claims meanwhile. What is recorded as a hash of an old event is forgotten by
-- programs that look for the event itself.
lock table {schema}.processed in access exclusive mode;
create table {schema}.processed_after (
    event_id   uuid        not null,
    consumer   smallint    not null,
    claimed_at timestamptz not null default now()
);
insert into {schema}.processed_after select event_id, consumer, claimed_at from {schema}.processed;
do $$
declare
    g record;
begin
    for g in
        select a.privilege_type as privilege, case a.grantee when 0 then 'public' else a.grantee::regrole::text end as grantee
        from pg_class c, aclexplode(c.relacl) a where c.oid = '{schema}.processed'::regclass and a.grantee <> c.relowner
    loop
        execute format('grant %s on {schema}.processed_after to %s', g.privilege, g.grantee);
    end loop;
end
$$;
drop function {schema}.processed_days(int), {schema}.processed_settle(uuid, uuid, smallint), {schema}.processed_early(uuid, smallint),
    {schema}.processed_bound(date);
drop table {schema}.processed, {schema}.processed_ahead;
alter table {schema}.processed_after rename to processed;
alter table {schema}.processed add primary key (event_id, consumer);
alter table {schema}.consumer drop column floor, drop column since;
