-- Settings of a transaction that records a failure, for it alone: what it acks must be on disk, whatever the role's
-- default, and it must not wait for long.
select case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       set_config('lock_timeout', '2s', true)
