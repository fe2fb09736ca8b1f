// Package doctor finds what is wrong with the database, the outbox, consumers, effects and the broker. Each finding has a symptom, a
// cause and a remedy. It changes nothing and takes no locks. The command "millrace doctor" and the console are made of it.
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

// Finding is something that is wrong, or will be.
type Finding struct {
	Check   string `json:"check"` // which found it: what --ignore takes
	Symptom string `json:"symptom"`
	Cause   string `json:"cause,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	Note    bool   `json:"note,omitempty"` // worth knowing, and nothing wrong: it has neither cause nor remedy
}

// Limits say what is too much. Zero of those that have no default means that it is not checked.
type Limits struct {
	Lag                time.Duration // how long an event may wait in the outbox, or be overdue for a retry
	Transaction        time.Duration // how long a transaction may keep autovacuum from removing dead rows
	Retention, Horizon time.Duration // of consumers' records, and of deliveries by the broker
	Backlog            int64         // messages of a consumer at the broker
	Pool, Concurrency  int           // of one process
	Processes          int
	RelayInside        bool
}

// Broker is the one that is asked, where Open is not nil.
type Broker struct {
	Name          string   // "pubsub", "kafka", or what the configuration says; "": not known
	Words         []string // the flags that name it, for commands
	How           string   // which flags say how it is reached
	Open          func(ctx context.Context, patience time.Duration) (transport.Transport, error)
	Subscriptions []Subscription
}

// Subscription is what a consumer subscribes to.
type Subscription struct{ Consumer, Topic string }

// Config says what is examined.
type Config struct {
	Schema   string
	Limits   Limits
	Ignore   []string // names of checks whose findings are left out
	Reach    reach.Reach
	Broker   Broker
	Progress func(text string) // is told what is being checked. Default: nobody is
}

// doctor looks at everything, and collects what it finds.
type doctor struct {
	Config
	pool  *pgxpool.Pool   // nil: there is no database
	there map[string]bool // components whose tables fit this program
	room  int             // the server's max_connections
	found []Finding
}

// Examine runs the checks, and then asks the broker. Its error means that the database is gone.
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

// ExamineBroker asks the broker alone, for a service that has no database.
func ExamineBroker(ctx context.Context, cfg Config) []Finding {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	d := &doctor{Config: cfg}
	d.note("broker", "The service has no database (postgres.disabled): only the broker was asked. --subscribe names what to check there")
	return d.conclude(ctx)
}

// conclude asks the broker, and returns what was found.
func (d *doctor) conclude(ctx context.Context) []Finding {
	if d.Broker.Open != nil {
		d.askBroker(ctx)
	}
	return slices.DeleteFunc(d.found, func(f Finding) bool { return slices.Contains(d.Ignore, f.Check) })
}

// checks in the order in which their findings are read.
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

// Checks are the names of all checks.
func Checks() (names []string) {
	for _, c := range checks {
		names = append(names, c.name)
	}
	return append(names, "broker")
}

// examine runs the checks. A check that fails is a finding too, unless the database is gone.
func (d *doctor) examine(ctx context.Context) error {
	for _, c := range checks {
		if slices.Contains(d.Ignore, c.name) && c.name != "schema" { // which tells the others what is there
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
	// checkPatience is how long one check may take: a server that has become a black hole must not hold the command up.
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

// unseen is what helps after a check has failed.
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

// note adds what is worth knowing, once.
func (d *doctor) note(check, symptom string) {
	d.add(Finding{Check: check, Symptom: symptom, Note: true})
}

func (d *doctor) add(f Finding) {
	if !slices.Contains(d.found, f) {
		d.found = append(d.found, f)
	}
}

func (d *doctor) query(name string) string { return pgschema.Query(files, name, d.Schema) }

// command is one of this program's for the same database.
func (d *doctor) command(operand string, args ...string) string {
	return d.Reach.Command(operand, args...)
}

func (d *doctor) psql(sql string) string { return d.Reach.PSQL("", sql) }

// withBroker is a command of this program's that talks to the broker.
func (d *doctor) withBroker(args ...string) string {
	switch {
	case len(d.Broker.Words) > 0:
		return d.command("", append(args, d.Broker.Words...)...)
	case d.Broker.Name != "":
		return d.command("", args...)
	}
	return d.command("", append(args, "--broker", "kafka", "--brokers", "HOST:PORT")...) + " (or --broker pubsub --project PROJECT, or --config FILE)"
}
