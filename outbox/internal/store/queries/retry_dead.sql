-- Marks dead events of topic $1 that failed with one of the errors $2, ignoring numbers, IDs and quoted text: at most 10,000, and none
-- that has an operator's command. The holders of their shards' leases retry them. Uses the index outbox_failed_dead. Locks the rows that
-- it marks.
with marked as (
    update {schema}.outbox_failed set command = 'recover' where id in (
        select id from {schema}.outbox_failed
        where topic = $1::text and state = 'dead' and command is null
          and {alike}reason{/alike} in (select {alike}r{/alike} from unnest($2::text[]) r)
        order by id limit 10000 for update skip locked)
    returning 1
)
select count(*) from marked
