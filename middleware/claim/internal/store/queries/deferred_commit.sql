-- Makes the commit of this transaction not wait for the disk. It is sent with the commit.
select set_config('synchronous_commit', 'off', true)
