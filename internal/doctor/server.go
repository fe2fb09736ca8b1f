package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/internal/tables"
	"github.com/millrace-go/millrace/internal/words"
	"github.com/millrace-go/millrace/middleware/claim"
)

// schemas reports tables that are missing, older than this program, or newer.
func (d *doctor) schemas(ctx context.Context) error {
	d.there = map[string]bool{}
	all, err := tables.Migrators(d.pool, d.Schema)
	if err != nil {
		return err
	}
	none := true
	for _, m := range all {
		steps, err := m.Status(ctx)
		if err != nil {
			return err
		}
		applied, pending, newer := 0, 0, 0
		for _, s := range steps {
			switch {
			case s.AppliedAt == nil:
				pending++
			case !s.Known:
				newer = s.Version
			default:
				applied = s.Version
			}
		}
		switch {
		case newer > 0:
			d.find("schema", fmt.Sprintf("the tables of %s have version %d, but this command supports version %d", m.Component(), newer, applied),
				"a newer program migrated them; doctor did not check their contents", "upgrade this command to the version of that program")
		case applied > 0 && pending > 0:
			d.find("schema", fmt.Sprintf("the tables of %s have version %d, but programs of this version need version %d", m.Component(), applied, applied+pending),
				"the tables were not migrated after an upgrade; newer programs refuse to start", d.command("", "migrate", "up"))
		default:
			d.there[m.Component()] = applied > 0
		}
		none = none && applied == 0 && newer == 0
	}
	if none {
		d.find("schema", fmt.Sprintf("schema %q has no tables of Millrace", d.Schema), "they were not created yet, or this is the wrong database or schema",
			d.command("", "migrate", "up")+"; or name the right database by --dsn and the schema by --schema")
	}
	return nil
}

// server checks the server's settings, as this session sees them.
func (d *doctor) server(ctx context.Context) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var (
		backend                                                            uint32
		standby, readOnly, fsync, fullPages, vacuum, careless, development bool
		lock, statement, clients, connections                              int
	)
	err = conn.QueryRow(ctx, d.query("server")).Scan(&backend, &standby, &readOnly, &fsync, &fullPages, &vacuum, &careless, &development, &lock, &statement, &clients, &connections)
	if err != nil {
		return err
	}
	if backend != conn.Conn().PgConn().PID() {
		d.find("server", "this connection goes through a pooler", "a pooler in transaction mode passes no notifications on, so relays behind it find the events of other processes only by polling",
			"connect relays to the server directly, or set outbox.poll_interval to a delay that you accept; if this is intended, use --ignore server")
	}
	if standby || readOnly {
		d.find("server", "this database accepts no writes", "it is a standby, or default_transaction_read_only is on", "connect to the primary: add target_session_attrs=read-write to the connection string")
	}
	switch careful := fsync && fullPages; {
	case !careful && development:
		d.note("server", "this is a development stack: fsync is off, so a crash of the machine may corrupt its database")
	case !careful:
		d.find("server", "fsync or full_page_writes is off", "a crash of the machine may corrupt the database, and then none of Millrace's guarantees holds",
			d.psql("alter system set fsync = on")+" -c 'alter system set full_page_writes = on' -c 'select pg_reload_conf()'")
	}
	if !vacuum {
		d.find("autovacuum", "autovacuum is off, or track_counts, which it needs", "nobody removes dead rows of the outbox, so relays become slower and slower",
			d.psql("alter system set autovacuum = on")+" -c 'alter system set track_counts = on' -c 'select pg_reload_conf()'")
	}
	if careless {
		d.careless("this session's role, or the server", d.psql("alter role ROLE set synchronous_commit = on")+"; or reset it for the database or the server")
	}
	for _, t := range []struct {
		name string
		ms   int
		min  time.Duration
	}{{"lock_timeout", lock, time.Second}, {"statement_timeout", statement, 5 * time.Second}} {
		if is := time.Duration(t.ms) * time.Millisecond; is > 0 && is < t.min {
			d.find("settings", fmt.Sprintf("%s is %v", t.name, is), "statements that wait for a moment fail, and with them handlers and relays",
				fmt.Sprintf("set it to %v or more for the services' roles: %s", t.min, d.psql(fmt.Sprintf("alter role ROLE set %s = '%v'", t.name, 2*t.min))))
		}
	}
	d.room = connections
	if clients*10 > connections*9 {
		d.find("pool", fmt.Sprintf("%d of the server's %d connections are in use", clients, connections), "the pools of all programs together are larger than max_connections; soon a program gets no connection",
			"make the pools smaller (pool_max_conns), use a pooler, or raise max_connections")
	}
	return nil
}

// careless reports synchronous_commit = off.
func (d *doctor) careless(who, remedy string) {
	d.find("settings", "synchronous_commit is off for "+who, "after a crash of the server, transactions that were reported as committed may be lost, together with their events; claims, effects and relays wait for the disk in any case", remedy)
}

// roles checks settings of other roles and databases.
func (d *doctor) roles(ctx context.Context) error {
	if len(d.there) == 0 {
		return nil
	}
	var there bool
	if err := d.pool.QueryRow(ctx, `select to_regnamespace($1) is not null`, d.Schema).Scan(&there); err != nil || !there {
		return err
	}
	rows, err := d.pool.Query(ctx, d.query("roles"))
	if err != nil {
		return err
	}
	var who, setting, reset string
	_, err = pgx.ForEachRow(rows, []any{&who, &setting, &reset}, func() error {
		if strings.HasPrefix(setting, "synchronous_commit") {
			d.careless(who, d.psql(reset))
		} else {
			d.find("settings", setting+" for "+who, "its transactions cannot write", d.psql(reset))
		}
		return nil
	})
	return err
}

func (d *doctor) autovacuum(ctx context.Context) error {
	rows, err := d.pool.Query(ctx, d.query("tables"))
	if err != nil {
		return err
	}
	var table string
	_, err = pgx.ForEachRow(rows, []any{&table}, func() error {
		d.find("autovacuum", "autovacuum is off for table "+table, "nobody removes its dead rows, so queries on it become slower and slower",
			d.psql(fmt.Sprintf("alter table %s.%s reset (autovacuum_enabled)", d.Schema, table)))
		return nil
	})
	return err
}

// transactions reports what keeps vacuum from removing dead rows.
func (d *doctor) transactions(ctx context.Context) error {
	rows, err := d.pool.Query(ctx, d.query("transactions"), d.Limits.Transaction.Seconds(), d.Schema)
	if err != nil {
		return err
	}
	var who, end, unless string
	var database *string
	var seconds *float64
	_, err = pgx.ForEachRow(rows, []any{&who, &seconds, &database, &end, &unless}, func() error {
		symptom := "autovacuum cannot remove dead rows because of " + who
		if seconds != nil {
			symptom += ", open for " + words.Duration(time.Duration(*seconds*float64(time.Second)))
		}
		remedy := d.psql(end)
		if database != nil { // the statement works only in that database
			remedy = d.Reach.PSQL(*database, end)
		}
		d.find("transactions", symptom, "it was left open, or takes long; meanwhile the outbox and other tables that change often grow, and relays become slower", remedy+unless)
		return nil
	})
	return err
}

// partitions checks that the tables in use have partitions for the next days. "millrace migrate up" creates the tables of all components,
// and no process creates partitions of a component that no service uses. Relays create the partitions of the archive.
func (d *doctor) partitions(ctx context.Context) error {
	for _, p := range tables.Kept {
		if !d.there[p.Component] {
			continue
		}
		var used, tomorrow bool
		var last, missing string
		yesterday := 0 // events of yesterday may arrive; effects and keys are written today
		if p.Of == "claims" {
			yesterday = 1
		}
		if err := d.pool.QueryRow(ctx, d.query("days"), p.Table, yesterday).Scan(&used, &tomorrow, &last, &missing); err != nil {
			return err
		}
		if used && tomorrow && missing != "" {
			d.find("partitions", fmt.Sprintf("table %s has no partition for %s", p.Table, missing),
				"somebody dropped or detached it by hand; what belongs there fails until a service, or \"millrace retention run\", has created it again, and what was recorded there is lost",
				d.command("", "retention", "run")+"; run it as the owner of the tables, with --"+p.Flag+" set to the retention of the services")
		}
		if used && !tomorrow {
			d.find("partitions", fmt.Sprintf("table %s has no partition for tomorrow; the last one is for %s", p.Table, last),
				"no service created partitions for days, and \"millrace retention run\" was not run either; from midnight on, writes wait for a partition or fail",
				d.command("", "retention", "run")+"; run it daily as the owner of the tables, with --"+p.Flag+" set to the retention of the services")
		}
	}
	return nil
}

// pools compares the flags about a service's pool.
func (d *doctor) pools(context.Context) error {
	if d.Limits.Pool == 0 {
		return nil
	}
	need := d.Limits.Concurrency + poolBesides
	if d.Limits.RelayInside {
		need += PoolRelay
	}
	if d.Limits.Pool < need {
		d.find("pool", fmt.Sprintf("a pool of %d connections is too small for %d messages at once", d.Limits.Pool, d.Limits.Concurrency),
			"each running handler holds a connection; the other messages wait for one, and time out",
			fmt.Sprintf("set pool_max_conns=%d in the connection string, or the concurrency to %d", need, max(1, d.Limits.Concurrency-(need-d.Limits.Pool))))
	}
	if all := d.Limits.Pool * d.Limits.Processes; d.room > 0 && all > d.room {
		d.find("pool", fmt.Sprintf("%d processes with pools of %d connections can use %d, but the server has %d", d.Limits.Processes, d.Limits.Pool, all, d.room),
			"under load some processes get no connection", "make the pools smaller (pool_max_conns), use a pooler, or raise max_connections")
	}
	return nil
}

// The connections of a service's pool in addition to its handlers': see claim.Concurrency and outbox.Relay.
const (
	poolBesides = 2
	PoolRelay   = 5
)

// window compares how long consumers keep records with how long a broker may redeliver an event.
func (d *doctor) window(context.Context) error {
	d.checkWindow(d.Limits.Horizon, "--horizon")
	return nil
}

func (d *doctor) checkWindow(horizon time.Duration, of string) {
	if err := claim.CheckWindow(d.Limits.Retention, horizon); err != nil {
		d.find("window", fmt.Sprintf("consumers keep records for %s, but an event may be delivered for %s (%s)", days(d.Limits.Retention), days(horizon), of),
			"an event that is delivered after its record was dropped becomes a dead letter, because nobody knows whether it was processed",
			fmt.Sprintf("set claim.retention to %v or more in the services' configurations (Retention of claim.Config), or have the broker keep messages for less", horizon))
	}
}

// days formats a retention.
func days(d time.Duration) string {
	const day = 24 * time.Hour
	if d > 0 && d%day == 0 {
		return words.Count(int64(d/day), "day")
	}
	return d.String()
}
