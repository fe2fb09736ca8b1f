-- Ends the redirect of the topic $1, if there is one, and counts whether there was. Locks its row.
with gone as (
    delete from {schema}.outbox_topic where topic = $1::text and redirect_to is not null and paused_at is null returning 1
), kept as (
    update {schema}.outbox_topic set redirect_to = null where topic = $1::text and redirect_to is not null and paused_at is not null returning 1
)
select (select count(*) from gone) + (select count(*) from kept)
