-- Renews the leases that this relay holds ($3) and takes free or expired ones up to its fair share, which is all shards
-- divided by the relays that are there. Locks the rows it changes and skips those that another relay is taking. Answers
-- the fair share with every shard held now; a lease in $3 that is not among them was lost. One that was not given back
-- counts as a strike, and against what was being sent alone.
with share as (
    select ceil((select count(*) from {schema}.outbox_shard)::numeric
        / greatest((select count(*) from {schema}.outbox_relay where expires_at > now()), 1))::int as n
), free as (
    select shard from {schema}.outbox_shard
    where expires_at <= now() and not (relay_id is not distinct from $1::uuid and shard = any($3::smallint[]))
    order by random()
    limit greatest((select n from share) - cardinality($3::smallint[]), 0)
    for update skip locked
), held as (
    update {schema}.outbox_shard s
    set relay_id = $1::uuid, expires_at = now() + $2::int * interval '1 millisecond',
        strikes = case when s.shard = any($3::smallint[]) or coalesce(s.relay_id, $1::uuid) = $1::uuid then s.strikes else least(s.strikes + 1, 1000) end,
        attempts = case when s.shard = any($3::smallint[]) or coalesce(s.relay_id, $1::uuid) = $1::uuid or s.suspect is null then s.attempts else least(s.attempts + 1, 1000) end
    where s.shard in (select shard from free) or (s.relay_id = $1::uuid and s.shard = any($3::smallint[]))
    returning s.shard, s.strikes, coalesce(s.suspect, '') as suspect, s.attempts
)
select (select n from share), (select count(*)::int from {schema}.outbox_shard), shard, strikes, suspect, attempts from held
union all
select (select n from share), (select count(*)::int from {schema}.outbox_shard), null, null, null, null
