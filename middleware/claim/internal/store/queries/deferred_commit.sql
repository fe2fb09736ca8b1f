-- Lets this transaction's commit not wait for the disk. Sent with the commit.
select set_config('synchronous_commit', 'off', true)
