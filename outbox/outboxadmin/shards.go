package outboxadmin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/pgtx"
)

const (
	maxShards = 256
	// fenceTTL is how long producers are refused after a change of shards has died.
	fenceTTL = 15 * time.Second
	// shardsPoll is how often a change looks whether it can go on.
	shardsPoll = 50 * time.Millisecond
)

// ErrShardsChanging is wrapped by ChangeShards' error when another change is going on.
var ErrShardsChanging = errors.New("the number of shards is being changed by another session")

// Shards returns the number of shards.
func Shards(ctx context.Context, db pgtx.DB, schema string) (n int, err error) {
	err = administer(ctx, db, schema, "read the outbox's layout", func(ctx context.Context, tx pgx.Tx, schema string) error {
		l, err := readLayout(ctx, tx, schema)
		n = l.shards
		return err
	})
	return n, err
}

// ChangeShards changes the number of shards, 1 to 256, while producers and relays run. Producers are refused meanwhile:
// their statement fails with SQLSTATE 55006, and the transaction is to be repeated. Relays must run, because what is in
// the outbox has to be published first. Until ctx ends ChangeShards waits for that; when it fails, or dies, everything is
// as before, the latter within 15 s. Once the number has changed, ctx interrupts nothing more. progress is told each step in
// words. It is for the owner of the tables.
func ChangeShards(ctx context.Context, pool *pgxpool.Pool, schema string, n int, progress func(text string)) error {
	if n < 1 || n > maxShards {
		return fmt.Errorf("change shards: %d is not a number of shards: want 1 to %d", n, maxShards)
	}
	if pool.Config().MaxConns < 2 {
		return errors.New("change shards: the pool's MaxConns is 1: want 2 or more")
	}
	if progress == nil {
		progress = func(string) {}
	}
	// A transaction of its own for the lock only, which ends with the session: it must not touch the tables.
	changed := false
	err := administer(ctx, pool, schema, "change shards", func(locked context.Context, lock pgx.Tx, schema string) error {
		// It is idle for as long as the change takes.
		if _, err := lock.Exec(locked, `set local idle_in_transaction_session_timeout = 0`); err != nil {
			return err
		}
		var free bool
		if err := lock.QueryRow(locked, `select pg_try_advisory_xact_lock(hashtextextended($1 || '.outbox_layout', 0))`, schema).Scan(&free); err != nil {
			return err
		}
		if !free {
			return ErrShardsChanging
		}
		c := &change{db: pool, schema: schema, to: n, progress: progress}
		var l layout
		if err := c.transact(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
			l, err = readLayout(ctx, tx, schema)
			return err
		}); err != nil {
			return err
		}
		c.from = l.shards
		if l.shards == n && l.rows == n && l.inFunction == n && l.sequences == n {
			if l.fenced { // the former change ended before its last step
				progress("the layout is that already; the function that gives numbers is restored")
				return c.unfence(ctx, n)
			}
			progress(fmt.Sprintf("there are %d shards already", n))
			return nil
		}
		if err := c.refusePaused(ctx); err != nil {
			return err
		}
		err := c.run(ctx)
		changed = err == nil
		return err
	})
	if changed {
		err = nil // the lock's transaction has nothing to commit, and cannot after ctx has ended
	}
	return err
}

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

// plainNext is the function as the migration makes it, which PostgreSQL inlines.
func plainNext(n int) string {
	return `create or replace function {schema}.outbox_next(shard smallint) returns bigint language sql volatile
as $sql$select ` + numbers(n) + `$sql$`
}

// fencedNext refuses until the time and is like plainNext afterwards.
func fencedNext(n int, until string) string {
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

// changeLayout makes sequences and leases those of n shards, and moves what is aside. New sequences get the owner and the
// privileges of the first one. Leases are taken away, so that relays forget what they know of their shards.
func changeLayout(n int) string {
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
update {schema}.outbox_failed set shard = {schema}.outbox_shard_of(hash)`, n)
}
