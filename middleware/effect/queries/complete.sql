-- Begins a look at one effect as lock.sql does, in a transaction of somebody else, whose other settings stay. A record that a crash
-- could undo would be lost: its sender has its answer.
select pg_advisory_xact_lock($1),
       case current_setting('synchronous_commit') when 'off' then set_config('synchronous_commit', 'on', true) end,
       null, clock_timestamp()
