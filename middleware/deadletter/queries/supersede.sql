-- Notes that events of replays are replayed again or discarded, by claim_failed's primary key, under the locks of their rows.
with superseded as (
    delete from {schema}.claim_replay_event where id = any ($1::bigint[]) returning replay
)
insert into {schema}.claim_replay_superseded (replay, events) select replay, count(*) from superseded group by replay
