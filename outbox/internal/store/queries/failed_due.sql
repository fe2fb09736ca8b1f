-- The shards in which failed events have a command or are due, unless their topic is paused. Uses the index outbox_failed_due.
select distinct shard from {schema}.outbox_failed f
where shard = any($1::smallint[]) and (state = 'retrying' or command is not null)
  and (command is not null or retry_at <= now() and not exists (
      select from {schema}.outbox_topic t
      where t.topic = f.topic
        and (t.paused_at is not null or exists (select from {schema}.outbox_topic o where o.topic = t.redirect_to and o.paused_at is not null))))
