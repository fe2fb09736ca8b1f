-- What the database's functions may leave in a transaction for later statements: the settings that they set by name, and whether
-- one makes a temporary table or a cursor. Reads pg_proc; a group asks at most once a minute. Only the source of a function tells,
-- so functions in C and computed names stay unknown. This schema's own functions leave nothing.
select coalesce(array_agg(distinct replace(lower(coalesce(m[1], m[2], m[3])), ' ', '_')) filter (where m is not null), '{}'),
       coalesce(bool_or(s.source ~* '\mtemp(orary)?\M|\mpg_temp\M|\mcursor\M|\mrefcursor\M'), false)
from pg_proc p
join pg_language l on l.oid = p.prolang
cross join lateral (select coalesce(pg_get_function_sqlbody(p.oid), p.prosrc) as source) s
left join lateral regexp_matches(s.source,
    $re$\mset_config\s*\(\s*'([^']+)'|(?:^|;|'|\mbegin\M|\mthen\M|\melse\M|\mloop\M)\s*set\s+(?:local\s+|session\s+)?(?:(role|session authorization)\M|([a-z_][a-z0-9_.]*)\s*(?:=|\mto\M))$re$,
    'gi') m on true
where l.lanname not in ('internal', 'c') and p.pronamespace not in (
    select oid from pg_namespace where nspname in ('pg_catalog', 'information_schema') or oid = to_regnamespace('{schema}'))
