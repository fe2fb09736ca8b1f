-- Whether the role can wake events that wait for an effect: the claim's table exists and the role may update it. Takes no locks.
select coalesce(has_table_privilege(f, 'select') and has_table_privilege(f, 'update'), false) from (select to_regclass('{schema}.claim_failed')::oid as f) t
