-- Makes the commit of this transaction flush the WAL, with everything before it. Needs no table.
select set_config('synchronous_commit', case current_setting('synchronous_commit') when 'off' then 'on' else current_setting('synchronous_commit') end, true),
       pg_logical_emit_message(true, 'millrace', '')
