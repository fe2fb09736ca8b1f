package main

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/cmd/millrace/internal/output"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/middleware/claim"
)

//go:embed queries/*.sql
var files embed.FS

// finding is something that is wrong, or will be.
type finding struct {
	Check   string `json:"check"` // which found it: what --ignore takes
	Symptom string `json:"symptom"`
	Cause   string `json:"cause,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	Note    bool   `json:"note,omitempty"` // worth knowing, and nothing wrong: it has neither cause nor remedy
}

// thresholds say what is too much. Zero of those that have no default means that it is not checked.
type thresholds struct {
	lag, transaction   time.Duration
	retention, horizon time.Duration
	backlog            int64 // messages of a consumer at the broker
	pool, concurrency  int   // of one process
	processes          int
	relayInside        bool
}

// doctor looks at everything, and collects what it finds.
type doctor struct {
	*app
	limits thresholds
	pool   *pgxpool.Pool
	there  map[string]bool // components whose tables fit this program
	room   int             // the server's max_connections
	found  []finding
}

const doctorUsage = `Finds what is wrong with the database, the outbox, consumers, effects and, with --broker or --config, the broker. Each finding
has a symptom, a cause and a remedy. Tell it by flags what it cannot see: the --pool and --concurrency of a service, its
--retention, and who subscribes to what.

Exit codes: 0 without findings, or with notes only; 1 with findings; 2 if the command line is wrong or the database cannot be
reached. It changes nothing, takes no locks, and needs the privileges of an operator ("millrace migrate grants --operator").
Only members of pg_read_all_stats see transactions of other roles.

Checks that --ignore accepts: ` // and their names

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
	{"retries", (*doctor).retries},
	{"poison", (*doctor).poison},
	{"effects", (*doctor).effects},
	{"pool", (*doctor).pools},
	{"window", (*doctor).window},
}

func checkNames() (names []string) {
	for _, c := range checks {
		names = append(names, c.name)
	}
	return append(names, "broker")
}

func (a *app) doctor() *cobra.Command {
	var (
		limits    thresholds
		ignore    []string
		subscribe []string
	)
	c := a.database(&cobra.Command{
		Use: "doctor", Short: "Find what is wrong, and what to do about it", Args: cobra.NoArgs, Long: doctorUsage + strings.Join(checkNames(), ", ") + ".",
		Example: "  millrace doctor\n  millrace doctor --config millrace.yaml --subscribe notify-family=labour.completed\n  millrace doctor --pool 30 --concurrency 20 --processes 4 --relay-inside",
	})
	f := c.Flags()
	f.DurationVar(&limits.lag, "max-lag", time.Minute, "how long an event may wait in the outbox, or be overdue for a retry")
	f.DurationVar(&limits.transaction, "max-transaction", 15*time.Minute, "how long a transaction may keep autovacuum from removing dead rows")
	ageVar(c, &limits.retention, "retention", "for how long consumers keep records of processed events (default: the configuration's claim.retention, or 14d)")
	ageVar(c, &limits.horizon, "horizon", "how long after its creation an event may be delivered (default: the configuration's claim.redelivery_horizon, or 7d); with --subscribe the broker is asked, too")
	f.Int64Var(&limits.backlog, "max-backlog", 10_000, "how many messages may wait for a consumer at the broker (Kafka only)")
	f.IntVar(&limits.pool, "pool", 0, "connections in the pool of one process of a service (pool_max_conns); 0: not checked")
	f.IntVar(&limits.concurrency, "concurrency", 0, "messages that one process handles at once, over all its subscriptions")
	f.IntVar(&limits.processes, "processes", 1, "processes of that service")
	f.BoolVar(&limits.relayInside, "relay-inside", false, "that service runs a relay, too")
	f.StringSliceVar(&subscribe, "subscribe", nil, "CONSUMER=TOPIC, a subscription to check at the broker; may be repeated")
	f.StringSliceVar(&ignore, "ignore", nil, "checks to ignore, separated by commas")
	oneOf(c, "ignore", checkNames()...)
	a.broker.flags(c)
	c.RunE = func(_ *cobra.Command, _ []string) error {
		for _, name := range ignore {
			if !slices.Contains(checkNames(), name) {
				return usageError{fmt.Errorf("--ignore has %q: want %s", name, either(checkNames()))}
			}
		}
		subscriptions, err := parseSubscriptions(subscribe, a.brokerName())
		if err != nil {
			return usageError{err}
		}
		var kept claim.Config
		if a.cfg != nil {
			kept = a.cfg.Claim.Config
		}
		limits.retention = cmp.Or(limits.retention, kept.Retention, claim.DefaultRetention)
		limits.horizon = cmp.Or(limits.horizon, kept.RedeliveryHorizon, claim.DefaultRedeliveryHorizon)
		asks := (a.brokerName() == "pubsub" || a.brokerName() == "kafka") && !slices.Contains(ignore, "broker")
		if asks && a.cfg == nil {
			if err := a.load(); err != nil { // which says nothing about the broker
				return usageError{err}
			}
		}
		ctx, stop := untilSignal()
		defer stop()
		defer a.showProgress("Connecting to the database")()
		pool, err := a.connect(ctx)
		if err != nil {
			return err
		}
		defer pool.Close()
		d := &doctor{app: a, limits: limits, pool: pool}
		if err := d.examine(ctx, ignore); err != nil {
			return err
		}
		if asks {
			d.askBroker(ctx, subscriptions)
		}
		d.found = slices.DeleteFunc(d.found, func(f finding) bool { return slices.Contains(ignore, f.Check) })
		return d.report()
	}
	return a.prints(c)
}

// subscription is what a consumer subscribes to.
type subscription struct{ consumer, topic string }

func parseSubscriptions(subscribe []string, broker string) (all []subscription, err error) {
	if len(subscribe) > 0 && broker != "pubsub" && broker != "kafka" {
		err = errors.New("--subscribe needs --broker pubsub or kafka, or a configuration with one of them")
	}
	for _, s := range subscribe {
		consumer, topic, found := strings.Cut(s, "=")
		if !found || consumer == "" || topic == "" {
			err = errors.Join(err, fmt.Errorf("--subscribe has %q: want CONSUMER=TOPIC", s))
		}
		all = append(all, subscription{consumer, topic})
	}
	return all, err
}

// examine runs the checks. A check that fails is a finding too, unless the database is gone.
func (d *doctor) examine(ctx context.Context, ignore []string) error {
	for _, c := range checks {
		if slices.Contains(ignore, c.name) && c.name != "schema" { // which tells the others what is there
			continue
		}
		d.progress.Say("Checking: " + c.name)
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
	d.add(finding{Check: check, Symptom: symptom, Cause: cause, Remedy: remedy})
}

// note adds what is worth knowing, once.
func (d *doctor) note(check, symptom string) {
	d.add(finding{Check: check, Symptom: symptom, Note: true})
}

func (d *doctor) add(f finding) {
	if !slices.Contains(d.found, f) {
		d.found = append(d.found, f)
	}
}

func (d *doctor) report() error {
	wrong := len(d.found)
	for _, f := range d.found {
		if f.Note {
			wrong--
		}
	}
	if d.json {
		if err := d.printJSON(append([]finding{}, d.found...)); err != nil {
			return err
		}
	} else {
		d.print(wrong)
	}
	if wrong > 0 {
		return exitStatus(exitFailed)
	}
	return nil
}

func (d *doctor) print(wrong int) {
	const indent = len("  remedy  ")
	for _, f := range d.found {
		if f.Note {
			continue
		}
		d.terminal.Paragraph(d.stdout, len(f.Check)+len(": "), f.Check+":", d.terminal.Red, oneLine(f.Symptom))
		d.terminal.Paragraph(d.stdout, indent, "  cause", d.terminal.Dim, oneLine(f.Cause))
		d.say("%s  %s", d.terminal.Dim("  remedy"), oneLine(f.Remedy)) // not wrapped: its commands are to be copied
	}
	if wrong == 0 {
		d.say("%s", d.terminal.Green("No problems found."))
	} else {
		d.say("\n%s found.", output.Count(wrong, "problem"))
	}
	for _, f := range d.found {
		if f.Note {
			d.terminal.Paragraph(d.stdout, len("Note: "), "Note:", d.terminal.Dim, oneLine(f.Symptom)+".")
		}
	}
}

func (d *doctor) query(name string) string { return pgschema.Query(files, name, d.schema) }

// command is one of this program's for the same database.
func (d *doctor) command(operand string, words ...string) string {
	return d.reach.command(operand, words...)
}

func (d *doctor) psql(sql string) string { return d.reach.psql("", sql) }

// withBroker is a command of this program's that talks to the broker.
func (d *doctor) withBroker(words ...string) string {
	switch flags := d.broker.words(); {
	case len(flags) > 0:
		return d.command("", append(words, flags...)...)
	case d.brokerName() != "":
		return d.command("", words...)
	}
	return d.command("", append(words, "--broker", "kafka", "--brokers", "HOST:PORT")...) + " (or --broker pubsub --project PROJECT, or --config FILE)"
}
