package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgdsn"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

// Database is one of a fleet.
type Database struct {
	// Name tells it from the others, in metrics, logs and commands: 1 to 100 characters. Required.
	Name string
	// DSN is its connection string. Required.
	DSN string `secret:"true"`
}

// LogValue keeps the DSN from logs.
func (d Database) LogValue() slog.Value { return slog.StringValue(d.Name) }

// Format keeps the DSN from logs, whatever the verb.
func (d Database) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, d.Name) }

// Provider says which databases there are now. After an error those of the last call stay. One whose DSN has changed is another
// one. It may be slow; it must return when its context ends.
type Provider func(context.Context) ([]Database, error)

// Fixed provides always the same databases.
func Fixed(databases ...Database) Provider {
	return func(context.Context) ([]Database, error) { return databases, nil }
}

// Config configures a Fleet. Its zero value is ready for use.
type Config struct {
	// Connections is how many connections the fleet has to one server, a host and port, at most: 1 to watch it, up to 12 to ask
	// databases whether they have work, and 3 for each relay. 16 or more. Default: 40.
	Connections int

	// Refresh is how often the provider is called. 100 ms or more. Default: 5 s.
	Refresh time.Duration

	// Timeout bounds the connecting to a database and each question whether it has work. 100 ms or more. Default: 10 s.
	Timeout time.Duration

	// Relay configures the relays; Database and PollOnly are the fleet's to set. Its PollInterval is also how often a database is
	// asked in which something was committed. Its Schema is that of all databases.
	Relay outbox.RelayConfig

	// Admit is asked before a relay of a database starts, on a connection to it: an error keeps the events there, and is told as that
	// of a database that is away. Default: none, each may start.
	Admit func(ctx context.Context, db *pgxpool.Pool) error
}

// WithDefaults returns the configuration with every zero field set to its default, apart from Relay.Schema.
func (c Config) WithDefaults() Config {
	if c.Connections == 0 {
		c.Connections = 40
	}
	if c.Refresh == 0 {
		c.Refresh = 5 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	c.Relay = c.Relay.WithDefaults()
	return c
}

// Validate reports everything that is wrong with the configuration, apart from Relay.Schema. It expects one that has its defaults.
func (c Config) Validate() error {
	var errs []error
	if c.Connections < minConnections {
		errs = append(errs, fmt.Errorf("Config.Connections is %d: want %d or more, or 0 for the default of 40", c.Connections, minConnections))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"Refresh", c.Refresh}, {"Timeout", c.Timeout}} {
		if d.value < 100*time.Millisecond {
			errs = append(errs, fmt.Errorf("Config.%s is %v: want 100ms or more, or 0 for the default", d.name, d.value))
		}
	}
	return errors.Join(append(errs, c.Relay.Validate())...)
}

// Check reports everything that is wrong with databases, which path names. Its errors show no connection strings.
func Check(path string, databases []Database) error {
	var errs []error
	names := map[string]bool{}
	for i, d := range databases {
		wrong := func(field, format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s[%d].%s is %w", path, i, field, fmt.Errorf(format, args...)))
		}
		if d.Name == "" || len(d.Name) > 100 {
			wrong("Name", "%q: want 1 to 100 characters", d.Name)
		} else if names[d.Name] {
			wrong("Name", "%q, and so is another one's: want a name of its own for each database", d.Name)
		}
		names[d.Name] = true
		if d.DSN == "" {
			wrong("DSN", "empty: want a connection string")
		} else if _, err := pgdsn.Parse(d.DSN); err != nil {
			wrong("DSN", "%w", err)
		}
	}
	return errors.Join(errs...)
}

// Fleet forwards the outboxes of many databases to one broker. Run does the work; Status may be called concurrently with it.
type Fleet struct {
	cfg       Config
	provider  Provider
	publisher message.Publisher
	running   atomic.Bool

	mu      sync.Mutex
	servers map[string]*server
	problem string // with the provider, as it was logged
}

// New returns a fleet of the provider's databases, whose relays publish with publisher. The publisher stays the caller's, and must
// be safe for concurrent use; the publishers of Millrace's transports are.
func New(provider Provider, publisher message.Publisher, cfg Config) (*Fleet, error) {
	var errs []error
	if provider == nil {
		errs = append(errs, errors.New("provider is nil: want a function that says which databases there are"))
	}
	if publisher == nil {
		errs = append(errs, errors.New("publisher is nil: want the publisher of a transport"))
	}
	if _, ok := publisher.(*outbox.Publisher); ok {
		errs = append(errs, errors.New("publisher is an outbox's own: want the publisher of a transport"))
	}
	if cfg.Relay.Database != "" {
		errs = append(errs, errors.New("Config.Relay.Database is set: want it empty, because the fleet sets it for each database"))
	}
	if cfg.Relay.Source == outbox.WAL {
		errs = append(errs, errors.New("Config.Relay.Source is WAL: want Table, because an idle database has no relay that could read its WAL"))
	}
	if cfg.Relay.Store == outbox.Log {
		errs = append(errs, errors.New("Config.Relay.Store is Log: want Rows, because an idle database has no relay that could read its WAL"))
	}
	schema, err := pgschema.Validate(cfg.Relay.Schema)
	if err != nil {
		errs = append(errs, fmt.Errorf("Config.Relay.%w", err))
	}
	cfg.Relay.Schema, cfg.Relay.PollOnly = schema, true
	cfg = cfg.WithDefaults()
	if err := errors.Join(append(errs, cfg.Validate())...); err != nil {
		return nil, fmt.Errorf("outbox fleet: %w", err)
	}
	return &Fleet{cfg: cfg, provider: provider, publisher: publisher, servers: map[string]*server{}}, nil
}

// Run forwards events until ctx ends. Then its relays end as outbox.Relay.Run does, and it returns nil. It returns an error only
// when it cannot start: the provider fails, or names no database or a wrong one, or the fleet has run before. Databases that
// cannot be reached are tried again for ever.
func (f *Fleet) Run(ctx context.Context) error {
	if !f.running.CompareAndSwap(false, true) {
		return errors.New("run outbox fleet: it has run before: create another with New")
	}
	stopObserving, err := f.observe()
	if err != nil {
		return fmt.Errorf("run outbox fleet: report metrics: %w", err)
	}
	defer stopObserving()
	var servers sync.WaitGroup
	defer servers.Wait()
	if err := f.refresh(ctx, &servers); err != nil && ctx.Err() == nil {
		return fmt.Errorf("run outbox fleet: %w", err)
	}
	tick := time.NewTicker(f.cfg.Refresh)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			f.tell(ctx, f.refresh(ctx, &servers))
		}
	}
}

// tell logs what is wrong with the provider, once for each error, and when it is right again.
func (f *Fleet) tell(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case err == nil && f.problem != "":
		f.problem = ""
		f.cfg.Relay.Logger.InfoContext(ctx, "which databases the fleet has is known again")
	case err != nil && err.Error() != f.problem:
		f.problem = err.Error()
		f.cfg.Relay.Logger.ErrorContext(ctx, "find out which databases the fleet has: those of before stay", "error", err)
	}
}

// refresh asks the provider, runs servers that are new, and ends those without databases when their relays have ended: a server that
// is named again must not begin a second budget.
func (f *Fleet) refresh(ctx context.Context, servers *sync.WaitGroup) error {
	databases, err := f.provider(ctx)
	if err != nil {
		return err
	}
	if len(databases) == 0 {
		return errors.New("there is no database: want one or more")
	}
	if err := Check("databases", databases); err != nil {
		return err
	}
	grouped := map[string][]Database{}
	for _, db := range databases {
		address, err := addressOf(db)
		if err != nil {
			return err
		}
		grouped[address] = append(grouped[address], db)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for address := range grouped {
		if f.servers[address] == nil {
			s := newServer(address, f)
			f.servers[address] = s
			var own context.Context
			own, s.end = context.WithCancel(ctx)
			servers.Go(func() { s.run(own) })
		}
	}
	for address, s := range f.servers {
		if len(grouped[address]) == 0 && s.empty() {
			s.end()
			delete(f.servers, address)
		}
		s.set(grouped[address])
	}
	return nil
}

// all returns the servers in order.
func (f *Fleet) all() []*server {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.SortedFunc(maps.Values(f.servers), func(a, b *server) int {
		if a.address < b.address {
			return -1
		}
		return 1
	})
}

// Status is what a fleet does about a database.
type Status struct {
	// Name is the database's.
	Name string
	// Server is its host and port.
	Server string
	// State is idle, probing (it is being asked whether there is work), waiting (for its turn), active (a relay runs), or stopping.
	State string
	// Since is when the state began.
	Since time.Time
	// Failures counts the failures of the database to answer, and of its relay to start, since both last succeeded.
	Failures int
	// Error is the last of them.
	Error error
	// Dead is how many events were dead when it was last asked, up to 10,000.
	Dead int64
}

// Status returns what the fleet does about each database.
func (f *Fleet) Status() (all []Status) {
	for _, s := range f.all() {
		s.mu.Lock()
		all = append(all, s.status...)
		s.mu.Unlock()
	}
	return all
}

// jitter keeps databases from being asked together.
func jitter(d time.Duration) time.Duration { return d - time.Duration(rand.Int64N(int64(d)/4+1)) }

// asProbe is a database's answer.
func asProbe(p store.Probe, err error) probe {
	return probe{work: p.Work, others: p.Others, next: p.Next, dead: p.Dead, database: p.Database, server: p.Server, err: err}
}
