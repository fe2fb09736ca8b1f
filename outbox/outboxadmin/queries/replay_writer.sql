-- Whether this role may do what a replay does.
select has_table_privilege('{schema}.outbox', 'insert')
