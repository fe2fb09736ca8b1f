-- Resumes the topic $1, if it is paused, and counts whether it was. Locks its row.
with gone as (
    delete from {schema}.outbox_topic where topic = $1::text and paused_at is not null and redirect_to is null returning 1
), kept as (
    update {schema}.outbox_topic set paused_at = null where topic = $1::text and paused_at is not null and redirect_to is not null returning 1
)
select (select count(*) from gone) + (select count(*) from kept)
