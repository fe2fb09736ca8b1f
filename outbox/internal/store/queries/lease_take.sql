-- Renews the leases that this relay holds ($3) and takes free or expired ones, except those in $4, up to its fair share: all shards
-- divided by the live relays that do not struggle, plus those that other relays leave because their publisher did not return. A
-- struggling relay gets none while another does not struggle. A lease of its own that is not in $3 was taken by a renewal whose answer
-- was lost. Locks the rows it changes and skips those that another relay is taking. Returns the fair share with every shard held now. A
-- lease in $3 that is not among them was lost, even if it is free again, because another relay may have worked on the shard meanwhile.
-- Each taken lease gets a new term.
-- Taking over a lease that was not released records that its relay ended, and, if that relay had noted an event, that it ended while it
-- sent it: that event is the suspect. A relay that renews again has not ended.
with alive as materialized (
    select relay_id, struggling, shunned from {schema}.outbox_relay where expires_at > now()
), share as (
    select case
        when not (select struggling from alive where relay_id = $1::uuid) then ceil(total::numeric / (select count(*) from alive where not struggling))
            + (select coalesce(sum(shunned), 0) from alive where relay_id <> $1::uuid)
        when exists (select from alive where not struggling) then 0
        else ceil(total::numeric / (select count(*) from alive)) end::int as n
    from (select count(*) as total from {schema}.outbox_shard) as shards
), free as (
    select shard from {schema}.outbox_shard
    where (expires_at <= now() or relay_id = $1::uuid) and shard <> all($3::smallint[]) and shard <> all($4::smallint[])
    order by random()
    limit greatest((select n from share) - cardinality($3::smallint[]), 0)
    for update skip locked
), held as (
    update {schema}.outbox_shard s
    set relay_id = $1::uuid, expires_at = now() + $2::int * interval '1 millisecond',
        term = s.term + (s.shard <> all($3::smallint[]))::int,
        deaths = case when s.relay_id <> $1::uuid and s.relay_id <> all(s.deaths)
            then (s.deaths || s.relay_id)[greatest(cardinality(s.deaths) - 8, 1):] else s.deaths end,
        suspect = case when s.relay_id <> $1::uuid then coalesce(s.noted, s.suspect) else s.suspect end,
        suspect_deaths = case when s.relay_id <> $1::uuid and s.noted <> coalesce(s.suspect, '') then array[s.relay_id]
            when s.relay_id <> $1::uuid and s.noted = s.suspect and s.relay_id <> all(s.suspect_deaths)
            then (s.suspect_deaths || s.relay_id)[greatest(cardinality(s.suspect_deaths) - 8, 1):] else s.suspect_deaths end,
        noted = case when s.relay_id = $1::uuid then s.noted end
    where s.shard in (select shard from free) or (s.relay_id = $1::uuid and s.shard = any($3::smallint[]))
    returning s.shard, s.term, s.deaths, coalesce(s.suspect, '') as suspect, s.suspect_deaths
)
select (select n from share), (select count(*)::int from {schema}.outbox_shard), shard, term,
       (select count(*)::int from unnest(deaths) d where d not in (select relay_id from alive)), suspect,
       (select count(*)::int from unnest(suspect_deaths) d where d not in (select relay_id from alive))
from held
union all
select (select n from share), (select count(*)::int from {schema}.outbox_shard), null, null, null, null, null
