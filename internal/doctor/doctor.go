// Package doctor finds problems of the database, the outbox, consumers, effects and the broker. Each finding has a symptom, a cause and a
// remedy. The package changes nothing and takes no locks. The command "millrace doctor" and the console use it.
package doctor

import (
	"context"
	"embed"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/reach"
	"github.com/millrace-go/millrace/transport"
)

//go:embed queries/*.sql
var files embed.FS

// Finding is a problem, now or in future.
type Finding struct {
	Check   string `json:"check"` // the check that found it, as --ignore accepts it
	Symptom string `json:"symptom"`
	Cause   string `json:"cause,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	Note    bool   `json:"note,omitempty"` // worth knowing, but no problem: it has neither cause nor remedy
}

// Limits are the limits of the checks. A limit of zero is not checked, unless the command has a default for it.
type Limits struct {
	Lag                time.Duration // how long an event may wait in the outbox, or be overdue for a retry
	Transaction        time.Duration // how long a transaction may keep autovacuum from removing dead rows
	Retention, Horizon time.Duration // of consumers' records, and of the broker's redeliveries
	Backlog            int64         // messages of a consumer at the broker
	Pool, Concurrency  int           // of one process
	Processes          int
	RelayInside        bool
}

// Broker is the broker to check. It is not checked if Open is nil.
type Broker struct {
	Name          string   // "pubsub", "kafka", or the configuration's name; "": not known
	Words         []string // the flags that name it, for commands
	How           string   // the flags for its connection
	Open          func(ctx context.Context, patience time.Duration) (transport.Transport, error)
	Subscriptions []Subscription
}

// Subscription is a consumer's subscription to a topic.
type Subscription struct{ Consumer, Topic string }

// Config says what to check.
type Config struct {
	Schema   string
	Limits   Limits
	Ignore   []string // names of checks to leave out
	Reach    reach.Reach
	Broker   Broker
	Log      bool              // publishers have outbox.Log, whether or not a relay has run
	Progress func(text string) // called with what is being checked. Default: no call
}

// doctor runs the checks and collects the findings.
type doctor struct {
	Config
	pool  *pgxpool.Pool   // nil: there is no database
	there map[string]bool // components whose tables fit this program
	room  int             // the server's max_connections
	found []Finding
}

// Examine runs the checks, including those of the broker. It returns an error if the database becomes unavailable.
func Examine(ctx context.Context, pool *pgxpool.Pool, cfg Config) ([]Finding, error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	d := &doctor{Config: cfg, pool: pool}
	if err := d.examine(ctx); err != nil {
		return nil, err
	}
	return d.conclude(ctx), nil
}

// ExamineBroker checks only the broker, for a service without a database.
func ExamineBroker(ctx context.Context, cfg Config) []Finding {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	d := &doctor{Config: cfg}
	d.note("broker", "The service has no database (postgres.disabled): only the broker was asked. --subscribe names what to check there")
	return d.conclude(ctx)
}

// conclude checks the broker and returns all findings.
func (d *doctor) conclude(ctx context.Context) []Finding {
	if d.Broker.Open != nil {
		d.askBroker(ctx)
	}
	return slices.DeleteFunc(d.found, func(f Finding) bool { return slices.Contains(d.Ignore, f.Check) })
}

// checks are the checks, in the order of their findings in the output.
var checks = []struct {
	name string
	run  func(d *doctor, ctx context.Context) error
}{
	{"schema", (*doctor).schemas},
	{"server", (*doctor).server},
	{"settings", (*doctor).roles},
	{"autovacuum", (*doctor).autovacuum},
	{"transactions", (*doctor).transactions},
	{"partitions", (*doctor).partitions},
	{"outbox", (*doctor).inOutbox},
	{"landing", (*doctor).landing},
	{"wal", (*doctor).wal},
	{"sequences", (*doctor).sequences},
	{"dead-letters", (*doctor).deadLetters},
	{"paused", (*doctor).paused},
	{"full-keys", (*doctor).full},
	{"retries", (*doctor).retries},
	{"poison", (*doctor).poison},
	{"effects", (*doctor).effects},
	{"schedules", (*doctor).schedules},
	{"pool", (*doctor).pools},
	{"window", (*doctor).window},
}

// Checks returns the names of all checks.
func Checks() (names []string) {
	for _, c := range checks {
		names = append(names, c.name)
	}
	return append(names, "broker")
}

// examine runs the checks. A failed check becomes a finding, unless the database is unavailable.
func (d *doctor) examine(ctx context.Context) error {
	for _, c := range checks {
		if slices.Contains(d.Ignore, c.name) && c.name != "schema" { // "schema" always runs, because it finds the components for the others
			continue
		}
		d.Progress("Checking: " + c.name)
		if err := d.check(ctx, c.run); err != nil {
			if gone := d.ping(ctx); gone != nil {
				return errors.Join(err, gone)
			}
			d.find(c.name, "this check failed", err.Error(), d.unseen(err))
		}
	}
	return nil
}

const (
	// checkPatience is how long one check may take, so that a server that no longer answers does not block the command.
	checkPatience = time.Minute
	pingPatience  = 5 * time.Second
)

func (d *doctor) check(ctx context.Context, run func(*doctor, context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	return run(d, ctx)
}

func (d *doctor) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingPatience)
	defer cancel()
	return d.pool.Ping(ctx)
}

// unseen returns the remedy after a failed check.
func (d *doctor) unseen(err error) string {
	var pgErr *pgconn.PgError
	switch {
	case !errors.As(err, &pgErr):
		return "try again"
	case pgErr.Code == "42501":
		return "run doctor as the owner of the tables, or have the owner run: " + d.command("", "migrate", "grants", "--operator", "ROLE")
	case strings.HasPrefix(pgErr.Code, "42"), pgErr.Code == "3F000":
		return "something that the migrations created was dropped or changed by hand; to see what they create: " + d.command("", "migrate", "print", "--from", "0")
	case pgErr.Code == "57014":
		return "try again with a longer statement_timeout for this role"
	}
	return "try again"
}

// find adds a finding, once.
func (d *doctor) find(check, symptom, cause, remedy string) {
	d.add(Finding{Check: check, Symptom: symptom, Cause: cause, Remedy: remedy})
}

// note adds a note, once.
func (d *doctor) note(check, symptom string) {
	d.add(Finding{Check: check, Symptom: symptom, Note: true})
}

func (d *doctor) add(f Finding) {
	if !slices.Contains(d.found, f) {
		d.found = append(d.found, f)
	}
}

func (d *doctor) query(name string) string { return pgschema.Query(files, name, d.Schema) }

// command returns a command of this program for the same database.
func (d *doctor) command(operand string, args ...string) string {
	return d.Reach.Command(operand, args...)
}

func (d *doctor) psql(sql string) string { return d.Reach.PSQL("", sql) }

// withBroker returns a command of this program that connects to the broker.
func (d *doctor) withBroker(args ...string) string {
	switch {
	case len(d.Broker.Words) > 0:
		return d.command("", append(args, d.Broker.Words...)...)
	case d.Broker.Name != "":
		return d.command("", args...)
	}
	return d.command("", append(args, "--broker", "kafka", "--brokers", "HOST:PORT")...) + " (or --broker pubsub --project PROJECT, or --config FILE)"
}
