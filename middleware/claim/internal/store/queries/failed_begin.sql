-- Settings of a transaction that records a failure. Its commit must be durable, whatever the role's default, because a message is
-- acked after it. And it must not wait for long.
select case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       set_config('lock_timeout', '2s', true)
