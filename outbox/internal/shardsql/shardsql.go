// Package shardsql has the SQL that changes the number of an outbox's shards. {schema} stands for the schema.
package shardsql

import (
	"fmt"
	"strings"
)

// numbers is the expression that takes a number from the sequence of shard $1. Sequences are constants: looking them up by
// name costs more than the row. They stand in an array, which costs the same for any number of them.
func numbers(n int) string {
	var sql strings.Builder
	sql.WriteString("nextval((array[")
	for i := range n {
		separator := ", "
		if i%4 == 0 { // as in the migration
			separator = ",\n    "
		}
		if i == 0 {
			separator = "\n    "
		}
		fmt.Fprintf(&sql, "%s'{schema}.outbox_seq_%d'", separator, i)
	}
	sql.WriteString("\n    ]::regclass[])[$1 + 1])")
	return sql.String()
}

// Plain is the function as the migration makes it, which PostgreSQL inlines.
func Plain(n int) string {
	return `create or replace function {schema}.outbox_next(shard smallint) returns bigint language sql volatile
as $sql$select ` + numbers(n) + `$sql$`
}

// Fenced is the function that refuses until the time and is like Plain afterwards.
func Fenced(n int, until string) string {
	return `create or replace function {schema}.outbox_next(shard smallint) returns bigint language plpgsql volatile as $plpgsql$
begin
    if clock_timestamp() < '` + until + `'::timestamptz then
        raise exception 'the number of shards of the outbox is being changed'
            using errcode = '55006', hint = 'Repeat the transaction in a few seconds.';
    end if;
    return ` + numbers(n) + `;
end
$plpgsql$`
}

// Change makes sequences and leases those of n shards, and moves what is aside. New sequences get the owner and the
// privileges of the first one. Leases are taken away, so that relays forget what they know of their shards.
func Change(n int) string {
	return fmt.Sprintf(`do $do$
declare
    first    regclass := '{schema}.outbox_seq_0';
    sequence text;
    p        record;
begin
    for i in 1 .. %[1]d - 1 loop
        sequence := format('{schema}.outbox_seq_%%s', i);
        continue when to_regclass(sequence) is not null;
        execute format('create sequence %%s', sequence);
        execute format('alter sequence %%s owner to %%I', sequence, (select pg_get_userbyid(relowner) from pg_class where oid = first));
        for p in
            select case a.grantee when 0 then 'public' else format('%%I', pg_get_userbyid(a.grantee)) end as grantee, a.privilege_type, a.is_grantable
            from pg_class c, aclexplode(c.relacl) a where c.oid = first and a.grantee <> c.relowner
        loop
            execute format('grant %%s on sequence %%s to %%s', p.privilege_type, sequence, p.grantee)
                || case when p.is_grantable then ' with grant option' else '' end;
        end loop;
    end loop;
    for sequence in
        select oid::regclass::text from pg_class
        where relnamespace = '{schema}'::regnamespace and relkind = 'S' and relname ~ '^outbox_seq_\d+$'
        and substring(relname from '\d+$')::int >= %[1]d
    loop
        execute format('drop sequence %%s', sequence);
    end loop;
end
$do$;
delete from {schema}.outbox_shard where shard >= %[1]d;
insert into {schema}.outbox_shard (shard) select generate_series(0, %[1]d - 1) on conflict do nothing;
update {schema}.outbox_shard set relay_id = null, expires_at = '-infinity', deaths = '{}', noted = null, suspect = null, suspect_deaths = '{}';
update {schema}.outbox_layout set shards = %[1]d;
create or replace function {schema}.outbox_shard_of(hash bigint) returns smallint language sql immutable parallel safe
as 'select ($1 %% %[1]d)::smallint';
update {schema}.outbox_failed set shard = {schema}.outbox_shard_of(hash) where shard <> {schema}.outbox_shard_of(hash)`, n)
}
