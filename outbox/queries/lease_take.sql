-- Renews the leases that this relay holds ($3) and takes free or expired ones up to its fair share, which is all shards
-- divided by the relays that are there. Locks the rows it changes and skips those that another relay is taking. Answers
-- the shards held now and the fair share; a lease in $3 that is not among them was lost.
with share as (
    select ceil((select count(*) from {schema}.outbox_shard)::numeric
        / greatest((select count(*) from {schema}.outbox_relay where expires_at > now()), 1))::int as n
), free as (
    select shard from {schema}.outbox_shard
    where expires_at <= now() and not (relay_id is not distinct from $1 and shard = any($3::smallint[]))
    order by random()
    limit greatest((select n from share) - cardinality($3::smallint[]), 0)
    for update skip locked
), held as (
    update {schema}.outbox_shard s set relay_id = $1, expires_at = now() + $2 * interval '1 second'
    where s.shard in (select shard from free) or (s.relay_id = $1 and s.shard = any($3::smallint[]))
    returning s.shard
)
select (select n from share), coalesce(array_agg(shard order by shard), '{}')::smallint[] from held
