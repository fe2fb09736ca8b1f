package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Probe is what a fleet asks about a database.
type Probe struct {
	Work     bool           // a relay would find something to do
	Others   bool           // a relay runs and publishes events
	Next     *time.Duration // until something is due; nil: nothing is
	Dead     int64          // dead events, up to 10,000
	Database string         // its name on the server
	Server   time.Time      // when its server started
}

// byIndex makes the planner use indexes, even if reading a small table looks cheaper. Without an index, such a plan looks so expensive
// that the server would compile it, which takes much longer than the statement, so jit is off.
var byIndex = statement{sql: `select set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)`}

// ProbeDatabase checks a database for work.
func ProbeDatabase(ctx context.Context, conn *pgx.Conn, schema string) (p Probe, err error) {
	err = exchange(ctx, conn.PgConn(), begin, byIndex, statement{sql: Query("probe", schema), row: func(v [][]byte) error {
		p = Probe{Work: v[0][0] != 0, Others: v[1][0] != 0, Dead: asInt8(v[3]), Database: string(v[4]), Server: asTime(v[5])}
		if v[2] != nil {
			next := time.Duration(asInt8(v[2])) * time.Millisecond
			p.Next = &next
		}
		return nil
	}}, commit)
	return p, err
}

// Watch finds the databases of a server in which something may have been committed. It is not safe for concurrent use.
type Watch struct {
	application string
	activity    string
	written     string

	server time.Time // when it started
	looked time.Time // the server's time of the last call
	rows   map[string]int64
}

// NewWatch returns a Watch. It ignores sessions with that application name, which write nothing.
func NewWatch(application string) *Watch {
	return &Watch{application: application, activity: Query("watch_activity", ""), written: Query("watch_written", "")}
}

// Changes are the databases of a server in which something may have been committed since the last call. After the first call to a server
// that may be any of them.
type Changes struct {
	All       bool
	Databases []string
	Server    time.Time // when it started
}

// Look returns the databases in which something may have been committed since the last successful call. Each call may use another
// connection.
func (w *Watch) Look(ctx context.Context, conn *pgx.Conn) (c Changes, err error) {
	var at time.Time
	if err := conn.QueryRow(ctx, w.activity, pgx.QueryExecModeExec, w.looked, w.application).Scan(&c.Databases, &at, &c.Server); err != nil {
		return c, err
	}
	found, err := conn.Query(ctx, w.written, pgx.QueryExecModeExec)
	if err != nil {
		return c, err
	}
	rows := map[string]int64{}
	var name string
	var n *int64
	if _, err := pgx.ForEachRow(found, []any{&name, &n}, func() error {
		if n != nil {
			rows[name] = *n
		}
		if before, known := w.rows[name]; n == nil || !known || before != *n {
			c.Databases = append(c.Databases, name)
		}
		return nil
	}); err != nil {
		return c, err
	}
	c.All = !c.Server.Equal(w.server)
	w.rows, w.looked, w.server = rows, at, c.Server
	return c, nil
}
