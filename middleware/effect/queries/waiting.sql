-- Whether events that wait for an effect can be woken: the claim's table is there, and the role may change it. Takes no locks.
select coalesce(has_table_privilege(f, 'select') and has_table_privilege(f, 'update'), false) from (select to_regclass('{schema}.claim_failed')::oid as f) t
