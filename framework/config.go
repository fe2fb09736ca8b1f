package framework

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/framework/internal/broker"
	"github.com/millrace-go/millrace/framework/internal/budget"
	"github.com/millrace-go/millrace/framework/internal/database"
	"github.com/millrace-go/millrace/framework/internal/source"
	"github.com/millrace-go/millrace/framework/internal/web"
	"github.com/millrace-go/millrace/internal/enum"
	"github.com/millrace-go/millrace/internal/pgdsn"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/service"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/schedule"
	"github.com/millrace-go/millrace/transport"
)

// Config configures a Service. In a file its keys are the fields' names in snake case, and so are those of the broker's section.
// In the environment MILLRACE and the keys are joined by "_": MILLRACE_POSTGRES_DSN.
type Config struct {
	// Service names the service in traces, metrics and logs. It is also part of the names in the database, so the events, effects
	// and requests of services that share a database or a provider stay apart. If you rename a service, it is a new one that has
	// handled nothing. 1 to 100 letters, digits, ".", "_" and "-", starting with a letter. Required.
	Service string

	// Drivers are the brokers that the service can use. Load sets them to its arguments. Required.
	Drivers []transport.Driver `yaml:"-"`

	// Broker is the name of one of the service's drivers: "pubsub", "kafka" or "memory". The section of that name
	// configures it; sections of other brokers may stand beside it. Required.
	Broker string

	// Migration moves a fleet from Broker to another broker.
	Migration Migration

	// Postgres is the database that the handlers write to, with Millrace's tables.
	Postgres Postgres

	// HTTP configures the HTTP server. It serves /healthz, /readyz, /metrics (unless Admin does) and the routes of Service.HTTP.
	HTTP HTTP

	// Admin configures a second HTTP server, for operators: the console, /metrics, and /readyz with all reasons.
	Admin Admin

	// Outbox configures the publisher of the transactional outbox, and its relay.
	Outbox Outbox

	// Fleet names the databases whose outboxes "millrace relay" forwards in one process.
	Fleet Fleet

	// Claim configures how events are claimed, and what happens to events whose handlers fail.
	Claim Claim

	// DeadLetters configures how long dead letters are kept.
	DeadLetters DeadLetters

	// Effects configures the ledger of effects outside of the database: see Service.Effects.
	Effects Effects

	// IdempotencyKeys configures the keys that clients send with their requests: see Service.Keys.
	IdempotencyKeys IdempotencyKeys

	// Handlers configures handlers by their names. Other handlers have the defaults.
	Handlers map[string]Handler

	// CloudEvents says which topics carry CloudEvents.
	CloudEvents CloudEvents

	// Schedules configures schedules by their names. Its settings override those of the program: see the function Schedule.
	Schedules map[string]schedule.Times

	// Log configures the service's logger.
	Log Log

	// Telemetry configures traces and metrics.
	Telemetry Telemetry

	// Health configures /readyz.
	Health Health

	// ShutdownTimeout is how long running handlers, batches of the relay and requests may take to finish when the service ends.
	// Handlers and requests may take as long as the longest timeout of a handler, if that is longer. Default: 30 s.
	ShutdownTimeout time.Duration

	loaded *source.Source // to read the drivers' sections; nil for a configuration made in Go
}

// defaultSchema is the default of Postgres.Schema.
const defaultSchema = "millrace"

// Postgres names a database.
type Postgres struct {
	// DSN is a connection string or a URL. The PG variables of the process, such as PGHOST, complete it. Default: DATABASE_URL,
	// then the PG variables alone.
	DSN string `secret:"true"`
	// Schema is the schema of Millrace's tables. Default: "millrace".
	Schema string
	// MaxConnections bounds the pool. It needs one connection for each message in flight (with Claim.Group, for each group; with
	// Kafka's transactional delivery, none), 5 for the relay and 2 for background work; requests share these. The ledger opens up to
	// Effects.MaxConns more. Default: the DSN's pool_max_conns, else 30.
	MaxConnections int32
	// Migrate creates and changes Millrace's tables when the service starts, as "millrace migrate" does. Without it a schema that is
	// missing or too old is an error. Default: false.
	Migrate bool
	// Disabled makes a service without a database, which requires Kafka with transactional delivery. Its handlers consume and
	// publish. The other settings here, such as DSN, have no effect then. Settings that need tables are refused by Validate, and
	// functions that need tables return ErrNoPostgres. Default: false.
	Disabled bool
}

// HTTP configures the service's HTTP server.
type HTTP struct {
	// Address is host:port, with port 0 for any. Default: "127.0.0.1:8080".
	Address string
	// Server configures timeouts and TLS.
	Server
	// Linger is how long a stopping service still takes requests, but no messages, while /readyz answers 503. Make it as long as a
	// load balancer needs to notice. Default: 10 s after SIGTERM in RunUntilSignal, else 0.
	Linger *time.Duration
}

// Outbox configures publisher and relay.
type Outbox struct {
	// Relay says where the relay to the broker runs: Inside this process, or Apart, in another one such as "millrace relay". Default: Inside.
	Relay Placement
	// MaxBacklog is how many unpublished events the outbox may hold before Publish refuses more. Default: 0, no limit.
	MaxBacklog int
	// RelayConfig configures the relay; its Store also applies to the publisher. The service sets its schema, drain timeout, broker and telemetry.
	outbox.RelayConfig `without:"Schema,DrainTimeout,Broker,Database"`
}

// Placement is where a part runs.
type Placement int

const (
	// Inside is in this process.
	Inside Placement = iota
	// Apart is in another process, such as "millrace relay".
	Apart
)

func (p Placement) String() string {
	switch p {
	case Inside:
		return "Inside"
	case Apart:
		return "Apart"
	}
	return fmt.Sprintf("Placement(%d)", int(p))
}

// MarshalText writes the word that a configuration file has: inside or apart.
func (p Placement) MarshalText() ([]byte, error) { return enum.Text(p, Inside, Apart) }

// UnmarshalText reads that word.
func (p *Placement) UnmarshalText(word []byte) error { return enum.Read(p, word, Inside, Apart) }

// Claim configures the claim of every handler.
type Claim struct {
	// Config configures the claim. The service sets Service and Ordered; settings of single handlers are in Config.Handlers.
	claim.Config `without:"Service,Handlers,Ordered"`
}

func (c Claim) of(name string) claim.Config {
	c.Service = name
	return c.Config
}

// Handler configures a handler.
type Handler struct {
	// Concurrency is how many of its messages are in flight at once. Default: 10, or an equal share of the pool's
	// connections if that is less; with Claim.Group, that many groups. With Kafka's transactional delivery messages need no connections.
	Concurrency int
	// Ordered handles the events of a key one after the other, in the order of their commits, if the broker delivers them in that
	// order. Google's emulator of Pub/Sub does not always do so when a process stops or is killed. Default: false.
	Ordered bool
	// UnknownVersions says what happens to an event whose type or version the handler does not know, because a newer program has
	// published it. The event waits for a process that knows its version, becomes a dead letter at once, or is ignored. Default:
	// Wait.
	UnknownVersions Refusal
	// Group is the handler's name on the broker: the consumer group in Kafka, and part of the subscription's name in Pub/Sub.
	// Another group is another consumer, which starts anew. Default: the service's name, a dot and the handler's name.
	Group string
	// DeadLetters configures how long the handler's dead letters are kept.
	DeadLetters DeadLetters
	// HandlerConfig configures the claim for this handler.
	claim.HandlerConfig
}

// Log configures a logger.
type Log struct {
	// Level is debug, info, warn or error. Default: info.
	Level slog.Level
	// Format is text or json. Default: text.
	Format string
	// Handler receives the log instead of the standard error. Level and Format have no effect then. Default: none.
	Handler slog.Handler
}

// Telemetry configures OpenTelemetry. OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_ENDPOINT, say where traces go.
type Telemetry struct {
	// Traces exports spans. Default: when OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set.
	Traces *bool
	// TracerProvider receives the spans instead. Default: one that exports them, if Traces is set.
	TracerProvider trace.TracerProvider
	// MeterProvider receives the metrics. The service then has no /metrics. Default: a provider that Prometheus reads at /metrics.
	MeterProvider metric.MeterProvider
}

// WithDefaults returns the configuration with every zero field set to its default. The fields of Outbox.RelayConfig,
// Claim.Config, Effects.Config and IdempotencyKeys.Config stay as they are: these parts have defaults of their own.
func (c Config) WithDefaults() Config {
	c.Postgres.DSN = cmp.Or(c.Postgres.DSN, c.loaded.Getenv("DATABASE_URL"))
	c.Postgres.Schema = cmp.Or(c.Postgres.Schema, defaultSchema)
	c.HTTP.Address = cmp.Or(c.HTTP.Address, "127.0.0.1:8080")
	c.HTTP.Server, c.Admin.Server = c.HTTP.WithDefaults(), c.Admin.WithDefaults()
	c.Migration = c.Migration.WithDefaults()
	c.Health = c.Health.WithDefaults()
	c.Log.Format = cmp.Or(c.Log.Format, "text")
	c.CloudEvents.Source = cmp.Or(c.CloudEvents.Source, "/"+c.Service)
	c.ShutdownTimeout = cmp.Or(c.ShutdownTimeout, 30*time.Second)
	return c
}

// Validate reports everything that is wrong with the configuration. It expects one that has its defaults. It does not check the
// section of the broker: see Settings.
func (c Config) Validate() error {
	var errs []error
	wrong := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("Config.%s is %w", field, fmt.Errorf(format, args...)))
	}
	if err := service.Validate(c.Service); err != nil {
		errs = append(errs, fmt.Errorf("Config.%w", err))
	}
	if c.Broker == "" {
		wrong("Broker", "empty: want pubsub, kafka or memory")
	}
	errs = append(errs, broker.Validate(c.Broker, c.Migration.To, c.Migration.Quiet, c.settingsOf(c.Broker), c.settingsOf(c.Migration.To)))
	if c.Fleet.There() && c.Migration.To != "" {
		wrong("Migration.To", "%q beside Config.Fleet: want none, because a fleet's relays take no part in a migration; the services of the databases relay until it has ended", c.Migration.To)
	}
	connections := math.MaxInt32 // more than any handler needs
	if c.Postgres.Disabled {
		errs = append(errs, c.validateDisabled())
	} else if parsed, err := pgdsn.Parse(c.Postgres.DSN); err != nil {
		wrong("Postgres.DSN", "%w", err)
	} else if c.Postgres.MaxConnections >= 0 && !c.units() {
		connections = int(database.Connections(parsed, c.Postgres.DSN, c.Postgres.MaxConnections))
	}
	if _, err := pgschema.Validate(c.Postgres.Schema); err != nil {
		errs = append(errs, fmt.Errorf("Config.Postgres.%w", err))
	}
	if c.Postgres.MaxConnections < 0 {
		wrong("Postgres.MaxConnections", "%d: want 1 or more, or 0 for the default of 30", c.Postgres.MaxConnections)
	}
	if !web.IsAddress(c.HTTP.Address) {
		wrong("HTTP.Address", "%q: want host:port, such as \"127.0.0.1:8080\" or \":8080\"", c.HTTP.Address)
	}
	if a := c.Admin.Address; a != "" && !web.IsAddress(a) {
		wrong("Admin.Address", "%q: want host:port, such as \"127.0.0.1:9090\" or \":9090\"", a)
	}
	if l := c.HTTP.Linger; l != nil && *l < 0 {
		wrong("HTTP.Linger", "%s: want 0 or more", *l)
	}
	refuse := func(is bool, field, format string, args ...any) {
		if is {
			wrong(field, format, args...)
		}
	}
	o, fleet := c.Outbox, c.Fleet.There()
	refuse(o.Relay != Inside && o.Relay != Apart, "Outbox.Relay", "%s: want Inside or Apart", o.Relay)
	refuse(o.Delivery == outbox.Transactional && (c.Broker != "kafka" || c.Migration.To != "" || fleet), "Outbox.Delivery", "Transactional: want AtLeastOnce, or the broker kafka without Config.Migration and Config.Fleet: no other has the transactions that it needs")
	refuse(o.Source == outbox.WAL && fleet, "Outbox.Source", "WAL: want Table with Config.Fleet, because an idle database has no relay that could read its WAL")
	refuse(o.Store == outbox.Log && fleet, "Outbox.Store", "Log: want Rows with Config.Fleet, because an idle database has no relay that could read its WAL")
	refuse(o.MaxBacklog < 0, "Outbox.MaxBacklog", "%d: want 1 or more, or 0 for no limit", o.MaxBacklog)
	refuse(o.Store == outbox.Log && o.MaxBacklog > 0, "Outbox.MaxBacklog", "%d: want 0 where Config.Outbox.Store is Log, because nobody can count the events that are only in the log", o.MaxBacklog)
	const checked = "service" // a valid name, so that a wrong one is reported only once, above
	errs = append(errs,
		source.Within("Config.HTTP", c.HTTP.Validate()), source.Within("Config.Admin", c.Admin.Validate()),
		source.Within("Config.Admin.Console", c.Admin.Console.of(checked, &pgxpool.Pool{}, "").WithDefaults().Validate()),
		source.Within("Config.Outbox", c.Outbox.RelayConfig.WithDefaults().Validate()),
		source.Within("Config.Claim", c.Claim.of(checked).WithDefaults().Validate()),
		source.Within("Config.Effects", c.Effects.of(checked).WithDefaults().Validate()),
		source.Within("Config.IdempotencyKeys", c.IdempotencyKeys.of(checked, idempotencykey.Shared).WithDefaults().Validate()))
	for _, name := range slices.Sorted(maps.Keys(c.Handlers)) {
		field := fmt.Sprintf("Handlers[%q]", name)
		if err := transport.ValidateHandler(c.consumer(name)); err != nil {
			wrong(field, "of no handler: %w", err)
		}
		if group := c.Handlers[name].Group; group != "" {
			if err := transport.ValidateConsumer(group); err != nil {
				wrong(field+".Group", "%q: %w", group, err)
			}
		}
		n := c.Handlers[name].Concurrency
		if n < 0 {
			wrong(field+".Concurrency", "%d: want 1 or more, or 0 for the default", n)
		} else if needed, left := budget.For(n, c.Claim.Group), connections-budget.Beside(c.Outbox.Relay == Inside); n > 0 && needed > left {
			wrong(field+".Concurrency", "%d, which needs %d connections, and Config.Postgres.MaxConnections (%d) leaves %d for handlers: want a lower concurrency, or a larger pool", n, needed, connections, left)
		}
		if r := c.Handlers[name].UnknownVersions; r < Wait || r > Ignore {
			wrong(field+".UnknownVersions", "%s: want Wait, Dead or Ignore", r)
		}
		errs = append(errs, c.Handlers[name].DeadLetters.validate("Config."+field+".DeadLetters"), c.Handlers[name].Validate("Config."+field))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Schedules)) {
		errs = append(errs, c.Schedules[name].Validate(fmt.Sprintf("Config.Schedules[%q]", name)))
	}
	errs = append(errs, c.DeadLetters.validate("Config.DeadLetters"), c.CloudEvents.validate(), c.Health.Validate(), c.Fleet.validate())
	if c.Log.Format != "text" && c.Log.Format != "json" {
		wrong("Log.Format", "%q: want text or json", c.Log.Format)
	}
	if c.ShutdownTimeout < 0 {
		wrong("ShutdownTimeout", "%s: want more than 0, or 0 for the default of 30s", c.ShutdownTimeout)
	}
	return errors.Join(errs...)
}

// group returns the handler's name on the broker.
func (c Config) group(handler string) string {
	return cmp.Or(c.Handlers[handler].Group, c.Service+"."+c.consumer(handler))
}

// consumer returns the handler's name in the claim, without the service's.
func (c Config) consumer(handler string) string {
	if c.Claim.Consumer != nil {
		return c.Claim.Consumer(handler)
	}
	return handler
}
