package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/millrace/middleware/claim"
)

// schemas tells which tables are missing, old, or newer than this program.
func (d *doctor) schemas(ctx context.Context) error {
	d.there = map[string]bool{}
	all, err := d.migrators(d.pool, "", 0)
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
			d.find("schema", fmt.Sprintf("the tables of %s are of version %d, and this command knows %d", m.Component(), newer, applied),
				"a newer program has migrated them; what they hold was not looked at", "run this command in the version of the newest program that runs; older programs that do not fit refuse to start")
		case applied > 0 && pending > 0:
			d.find("schema", fmt.Sprintf("the tables of %s are of version %d, and programs of this version need %d", m.Component(), applied, applied+pending),
				"the programs are newer than the last migration: they refuse to start", d.command("", "migrate", "up"))
		default:
			d.there[m.Component()] = applied > 0
		}
		none = none && applied == 0 && newer == 0
	}
	if none {
		d.find("schema", fmt.Sprintf("schema %q has no tables of Millrace", d.schema), "they were never made, or this is another database or schema",
			d.command("", "migrate", "up")+`, or name it: --dsn, --schema`)
	}
	return nil
}

// server looks at settings as this session has them.
func (d *doctor) server(ctx context.Context) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var (
		backend                                               uint32
		standby, readOnly, fsync, fullPages, vacuum, careless bool
		lock, statement, clients, connections                 int
	)
	err = conn.QueryRow(ctx, d.query("doctor_server")).Scan(&backend, &standby, &readOnly, &fsync, &fullPages, &vacuum, &careless, &lock, &statement, &clients, &connections)
	if err != nil {
		return err
	}
	if backend != conn.Conn().PgConn().PID() {
		d.find("server", "this connection goes through a pooler", "a pooler in transaction mode passes no notifications on: relays behind it find events of other processes by polling alone",
			"give relays the server's own address, or set outbox.poll_interval to what may be waited; --ignore server where that is meant")
	}
	if standby || readOnly {
		d.find("server", "this database takes no writes", "it is a standby, or default_transaction_read_only is on", "name the primary: target_session_attrs=read-write in the connection string")
	}
	if !fsync || !fullPages {
		d.find("server", "fsync or full_page_writes is off", "a crash of the machine may corrupt the database: nothing that Millrace promises holds then",
			d.psql("alter system set fsync = on")+" -c 'alter system set full_page_writes = on' -c 'select pg_reload_conf()'")
	}
	if !vacuum {
		d.find("autovacuum", "autovacuum, or track_counts, which it needs, is off", "dead rows of the outbox are never cleaned up: relays get slower and slower",
			d.psql("alter system set autovacuum = on")+" -c 'alter system set track_counts = on' -c 'select pg_reload_conf()'")
	}
	if careless {
		d.careless("this session's role, or the server", d.psql("alter role ROLE set synchronous_commit = on")+", or: alter database, alter system")
	}
	for _, t := range []struct {
		name string
		ms   int
		min  time.Duration
	}{{"lock_timeout", lock, time.Second}, {"statement_timeout", statement, 5 * time.Second}} {
		if is := time.Duration(t.ms) * time.Millisecond; is > 0 && is < t.min {
			d.find("settings", fmt.Sprintf("%s is %v", t.name, is), "statements that have to wait a moment fail, and so do the handlers and relays that send them",
				fmt.Sprintf("%v or more for the services' roles: %s", t.min, d.psql(fmt.Sprintf("alter role ROLE set %s = '%v'", t.name, 2*t.min))))
		}
	}
	d.room = connections
	if clients*10 > connections*9 {
		d.find("pool", fmt.Sprintf("%d of the server's %d connections are taken", clients, connections), "the pools of all that use it are larger than it is: soon somebody gets none",
			"make pools smaller (pool_max_conns), put a pooler in front, or raise max_connections")
	}
	return nil
}

// careless is synchronous_commit = off.
func (d *doctor) careless(who, remedy string) {
	d.find("settings", "synchronous_commit is off for "+who, "a crash of the server undoes business transactions, with their events, that were reported as committed; claims, effects and relays commit to disk all the same", remedy)
}

// roles looks at settings that other sessions get.
func (d *doctor) roles(ctx context.Context) error {
	if len(d.there) == 0 {
		return nil
	}
	var there bool
	if err := d.pool.QueryRow(ctx, `select to_regnamespace($1) is not null`, d.schema).Scan(&there); err != nil || !there {
		return err
	}
	rows, err := d.pool.Query(ctx, d.query("doctor_roles"))
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
	rows, err := d.pool.Query(ctx, d.query("doctor_tables"))
	if err != nil {
		return err
	}
	var table string
	_, err = pgx.ForEachRow(rows, []any{&table}, func() error {
		d.find("autovacuum", "autovacuum is off for table "+table, "its dead rows are never cleaned up: what reads it gets slower and slower",
			d.psql(fmt.Sprintf("alter table %s.%s reset (autovacuum_enabled)", d.schema, table)))
		return nil
	})
	return err
}

// transactions looks for what holds back the cleaning of dead rows.
func (d *doctor) transactions(ctx context.Context) error {
	rows, err := d.pool.Query(ctx, d.query("doctor_transactions"), d.limits.transaction.Seconds())
	if err != nil {
		return err
	}
	var who, end, unless string
	var database *string
	var seconds *float64
	_, err = pgx.ForEachRow(rows, []any{&who, &seconds, &database, &end, &unless}, func() error {
		symptom := "dead rows are kept for " + who
		if seconds != nil {
			symptom += ", for " + ago(time.Duration(*seconds*float64(time.Second)))
		}
		remedy := d.psql(end)
		if database != nil { // only there
			remedy = d.reach.psql(*database, end)
		}
		d.find("transactions", symptom, "it was left open, or takes long; while it does, the outbox and the other tables that change quickly bloat, and relays read slower", remedy+unless)
		return nil
	})
	return err
}

// partitions looks whether days are made ahead of the tables that are in use. "millrace migrate up" makes the tables of all
// parts, and nobody keeps those of a part that no service has. Relays make the days of the archive when they need them.
func (d *doctor) partitions(ctx context.Context) error {
	for _, p := range keptTables {
		if !d.there[p.component] {
			continue
		}
		var used, tomorrow bool
		var last string
		if err := d.pool.QueryRow(ctx, d.query("doctor_days"), p.table).Scan(&used, &tomorrow, &last); err != nil {
			return err
		}
		if used && !tomorrow {
			d.find("partitions", fmt.Sprintf("the table %s has no day for tomorrow: the last one is that of %s", p.table, last),
				"no service has kept house for days, and nobody runs retention in its place: from midnight on writes wait for their day to be made, or fail",
				d.command("", "retention", "run")+"; each day, as the owner, with --"+p.flag+" of the duration that the services are configured with")
		}
	}
	return nil
}

// pools compares what was told of a service.
func (d *doctor) pools(context.Context) error {
	if d.limits.pool == 0 {
		return nil
	}
	need := d.limits.concurrency + poolBesides
	if d.limits.relayInside {
		need += poolRelay
	}
	if d.limits.pool < need {
		d.find("pool", fmt.Sprintf("a pool of %d connections for %d messages at once", d.limits.pool, d.limits.concurrency),
			"each running handler holds one connection: the others wait for it, hold their messages meanwhile, and time out",
			fmt.Sprintf("pool_max_conns=%d in the connection string, or a concurrency of %d", need, max(1, d.limits.concurrency-(need-d.limits.pool))))
	}
	if all := d.limits.pool * d.limits.processes; d.room > 0 && all > d.room {
		d.find("pool", fmt.Sprintf("%d processes with pools of %d connections, and the server has %d", d.limits.processes, d.limits.pool, d.room),
			"under load the last of them get none", "smaller pools (pool_max_conns), a pooler in front, or a higher max_connections")
	}
	return nil
}

// What a service's pool needs besides its handlers': see claim.Concurrency and outbox.Relay.
const (
	poolBesides = 2
	poolRelay   = 5
)

// window compares how long is remembered what was processed with how long a broker may deliver it.
func (d *doctor) window(context.Context) error {
	d.checkWindow(d.limits.horizon, "--horizon")
	return nil
}

func (d *doctor) checkWindow(horizon time.Duration, of string) {
	if err := claim.CheckWindow(d.limits.retention, horizon); err != nil {
		d.find("window", fmt.Sprintf("it is remembered for %v what was processed, and an event may be delivered for %v (%s)", d.limits.retention, horizon, of),
			"an event that is delivered later becomes a dead letter, because nobody knows whether it was processed",
			fmt.Sprintf("claim.retention: %v or more in the services' configurations (Retention of claim.Config), or a broker that keeps messages for less", horizon))
	}
}
