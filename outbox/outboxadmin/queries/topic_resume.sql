-- Resumes the topic $1, if it is paused. Locks its row.
delete from {schema}.outbox_topic where topic = $1::text and paused_at is not null
