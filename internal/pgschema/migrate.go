package pgschema

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/pgtx"
)

// Migrator migrates one component in one schema. Its methods may be called at any time, by several processes at once, while programs run:
// callers wait for one another, and for a table's lock only briefly.
type Migrator struct {
	// LockTimeout is how long a statement waits for a lock that a running transaction holds. Later statements wait behind it. It is
	// rounded down to milliseconds. Default: 2 s.
	LockTimeout time.Duration
	// Patience is how long the migration is retried if it does not get a lock. Default: 1 min.
	Patience time.Duration
	// Logger logs waits for a lock. Default: slog.Default().
	Logger *slog.Logger

	line   Line
	db     pgtx.DB
	schema string
}

// Component returns the component's name.
func (m *Migrator) Component() string { return m.line.Component }

// Up applies the missing migrations in one transaction. It leaves a schema that is newer than the program unchanged.
func (m *Migrator) Up(ctx context.Context) error {
	steps, err := m.line.steps()
	if err != nil {
		return err
	}
	err = m.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := m.prepare(ctx, tx, steps); err != nil {
			return err
		}
		at, err := m.version(ctx, tx)
		if err != nil {
			return err
		}
		return run(ctx, tx, m.script(steps, at, max(at, len(steps))))
	})
	if err != nil {
		return fmt.Errorf("migrate %s in schema %q: %w", m.line.Component, m.schema, err)
	}
	return nil
}

// Down migrates back to the version in one transaction; 0 is before the first one. Data of later versions is lost. If that would be
// events, Down refuses unless force is set.
func (m *Migrator) Down(ctx context.Context, to int, force bool) error {
	steps, err := m.line.steps()
	if err != nil {
		return err
	}
	err = m.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		there, err := exists(ctx, tx, `select to_regclass($1::text || '.migration') is not null`, m.schema)
		if err != nil || !there {
			return err
		}
		at, err := m.version(ctx, tx)
		switch {
		case err != nil:
			return err
		case to < 0 || to > at:
			return fmt.Errorf("version %d is not below the present one: want 0 to %d", to, at)
		case at > len(steps):
			return fmt.Errorf("version %d is newer than this program, which knows %d: run the program that knows the way back", at, len(steps))
		}
		if m.line.BeforeDown != nil && to < at {
			if err := m.line.BeforeDown(ctx, tx, Descent{m.schema, at, to, force}); err != nil {
				return err
			}
		}
		return run(ctx, tx, m.script(steps, at, to))
	})
	if err != nil {
		return fmt.Errorf("migrate %s in schema %q down: %w", m.line.Component, m.schema, err)
	}
	return nil
}

// prepare creates the schema and the table of migrations. It checks first, because "create … if not exists" needs the CREATE privilege
// and a lock even if they exist.
func (m *Migrator) prepare(ctx context.Context, tx pgx.Tx, steps []step) error {
	for _, s := range []struct{ exists, create string }{
		{`select to_regnamespace($1::text) is not null`, createSchema},
		{`select to_regclass($1::text || '.migration') is not null`, createTable},
		{
			`select exists (select from pg_attribute where attrelid = to_regclass($1::text || '.migration') and attname = 'oldest')`,
			addOldest + ";\n" + fillOldest(m.line.Component, steps),
		},
	} {
		there, err := exists(ctx, tx, s.exists, m.schema)
		if err != nil {
			return err
		}
		if !there {
			if _, err := tx.Exec(ctx, Render(s.create, m.schema)); err != nil {
				return err
			}
		}
	}
	return nil
}

func exists(ctx context.Context, tx pgx.Tx, question, schema string) (there bool, err error) {
	err = tx.QueryRow(ctx, question, `"`+schema+`"`).Scan(&there)
	return there, err
}

func (m *Migrator) version(ctx context.Context, db queryer) (v int, err error) {
	err = db.QueryRow(ctx, Render(`select coalesce(max(version), 0) from {schema}.migration where component = $1`, m.schema), m.line.Component).Scan(&v)
	return v, err
}

func run(ctx context.Context, tx pgx.Tx, script []part) error {
	for _, p := range script {
		if _, err := tx.Exec(ctx, p.sql); err != nil {
			return fmt.Errorf("%s: %w", p.what, err)
		}
	}
	return nil
}

// transact runs fn in a transaction that fails if it waits too long for a lock, and retries it.
func (m *Migrator) transact(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	lockTimeout, patience := cmp.Or(m.LockTimeout, 2*time.Second), cmp.Or(m.Patience, time.Minute)
	log := m.Logger
	if log == nil {
		log = slog.Default()
	}
	// Read committed, whatever the role's default, so that the transaction sees what another process applied while this one waited.
	opts := []pgtx.Option{pgtx.Isolation(pgx.ReadCommitted)}
	if _, joins := pgtx.From(ctx); joins {
		opts = nil
	}
	until := time.Now().Add(patience)
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := pgtx.Run(ctx, m.db, func(ctx context.Context, tx pgx.Tx) error {
			// There is no limit on waiting for other migrations, because they give up by themselves.
			if _, err := tx.Exec(ctx, lockLine); err != nil {
				return err
			}
			var before string // the setting would stay in an outer transaction
			if err := tx.QueryRow(ctx, `select current_setting('lock_timeout')`).Scan(&before); err != nil {
				return err
			}
			set := func(value string) error {
				_, err := tx.Exec(ctx, `select set_config('lock_timeout', $1, true)`, value)
				return err
			}
			if err := set(strconv.FormatInt(lockTimeout.Milliseconds(), 10)); err != nil {
				return err
			}
			if err := fn(ctx, tx); err != nil {
				return err
			}
			return set(before)
		}, opts...)
		if !isLockTimeout(err) {
			return err
		}
		holders, lookErr := m.holders(ctx)
		if time.Now().Add(wait).After(until) {
			return errors.Join(fmt.Errorf("no lock within %v, %w: end the transaction that holds it, or try again when it has ended; "+
				"the oldest with a lock in this schema: %s", patience, err, cmp.Or(holders, "none any more")), lookErr)
		}
		log.InfoContext(ctx, "migration waits for a lock", "component", m.line.Component, "schema", m.schema,
			"retry_in", wait, "held_by", holders, "error", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// holders returns which transactions hold locks on the schema's tables, the oldest first.
func (m *Migrator) holders(ctx context.Context) (text string, err error) {
	err = pgtx.Run(ctx, m.db, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select coalesce(string_agg(text, '; '), '') from (
			select format('pid %s (%s, %s) since %s: %s on %s', a.pid, coalesce(nullif(a.application_name, ''), '-'), a.state,
				a.xact_start::timestamptz(0), string_agg(distinct l.mode, ', '), string_agg(distinct c.relname, ', ')) as text
			from pg_locks l join pg_class c on c.oid = l.relation join pg_stat_activity a on a.pid = l.pid
			where l.granted and l.database = (select oid from pg_database where datname = current_database())
				and c.relnamespace = to_regnamespace($1) and c.relkind in ('r', 'p', 'S') and l.pid <> pg_backend_pid()
			group by a.pid, a.application_name, a.state, a.xact_start order by a.xact_start limit 3) as oldest`,
			`"`+m.schema+`"`).Scan(&text)
	})
	return text, err
}
