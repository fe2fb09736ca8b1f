package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/internal/self"
	"github.com/millrace-go/millrace/internal/tally"
	"github.com/millrace-go/millrace/outbox/internal/gaps"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wake"
	"github.com/millrace-go/millrace/retry"
	"github.com/millrace-go/millrace/transport"
)

// RelayConfig configures a Relay. Its zero value is ready for use.
type RelayConfig struct {
	// Schema of the outbox's tables. Default: "millrace".
	Schema string

	// BatchSize is how many events of a shard are read at once, and at most how many go into one batch, 1 to 10,000. Default:
	// 1,000.
	BatchSize int

	// MaxInFlight is how many events of a shard may be in flight: sent to the broker and not deleted yet. Those of one topic are
	// at most half of it, so that a slow topic leaves room for others. If a relay is killed, at most this many are published
	// again, with the same IDs. 1 to 100,000. Default: 2,000.
	MaxInFlight int

	// MaxAttempts is how often an event may fail, while the broker takes others of its topic, before it is dead: an
	// operator decides about it, and it blocks its key. An error that wraps transport.ErrRejected makes it dead at once;
	// an outage of the broker never does. If others that had failed with the same error are published later, it is retried
	// once more: the error was no fault of its own. The relay retries after 100 ms, then after twice that, up to a minute. Default:
	// 10.
	MaxAttempts int

	// Retry has rules for topics and errors: other attempts, another backoff, or that an event is dead at once. The first rule that
	// fits decides, and only about failures that may count. So an event waits in an outage, and is dead if an error wraps
	// transport.ErrRejected, whatever the rules say. Default: none.
	Retry retry.Policy

	// Delivery is how often an event is published. Transactional is for Kafka alone: a batch and a record of what is published are
	// one transaction of the brokers, and a relay that takes a shard over ends what its predecessor has begun. Consumers that are
	// read_committed get each event once, and wait for open transactions. A shard sends one batch at a time, and each shard has
	// connections of its own. At most 20,000 events may be MaxInFlight then. docs/guarantees.md has what it does not cover.
	// Default: AtLeastOnce.
	Delivery Delivery

	// Archive is how long published events are kept in the table outbox_archive, for replay and for "millrace explain".
	// Then whole days are dropped. 1 h or more. Default: 0, they are not kept.
	Archive time.Duration

	// PollInterval is how often the relay looks for events without a wake-up: those of transactions that Millrace did not
	// begin. 10 ms or more. Default: 1 s.
	PollInterval time.Duration

	// PollOnly makes the relay find events by its poll alone, without a connection that waits for notifications: for a pooler in
	// transaction mode, or where connections are few. Default: false.
	PollOnly bool

	// LeaseTTL is how long the shards of a killed relay wait for another relay. A relay that has not renewed its leases for
	// so long sends nothing. 500 ms or more. Default: 5 s.
	LeaseTTL time.Duration

	// PublishTimeout bounds the publishing of one batch by a transport.BatchPublisher. The Publish of any other publisher
	// takes no context and must return by itself. Events that are not acknowledged by then are published again. A call that
	// takes twice as long costs the relay the shard: another relay publishes its events. Default: 30 s.
	PublishTimeout time.Duration

	// DrainTimeout bounds how long Run waits, after its context has ended, for the batches in flight, before it cancels
	// them. Default: 10 s.
	DrainTimeout time.Duration

	// Broker is the configuration's name of the broker that the publisher publishes to. While the record of a migration to another
	// broker says otherwise, the relay does not run: see outbox/brokermigration. Default: "", the relay does not look at the record;
	// so for a brokermigration.Transport, which does.
	Broker string

	// Database is the attribute millrace.database of the relay's metrics, which tells relays of one process apart. Default: "",
	// no such attribute.
	Database string

	// MeterProvider and TracerProvider get the relay's metrics and its spans, one for each batch, linked to the spans that
	// the events were published in. Default: OpenTelemetry's global ones.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// Propagator reads the trace context in the events' metadata. Default: otel.GetTextMapPropagator().
	Propagator propagation.TextMapPropagator

	// Logger gets what the relay retries. Default: slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns the configuration with every zero field set to its default, apart from Schema.
func (c RelayConfig) WithDefaults() RelayConfig {
	for _, n := range []struct {
		field *int
		value int
	}{{&c.BatchSize, 1000}, {&c.MaxInFlight, 2000}, {&c.MaxAttempts, 10}} {
		if *n.field == 0 {
			*n.field = n.value
		}
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.PollInterval, time.Second},
		{&c.LeaseTTL, 5 * time.Second},
		{&c.PublishTimeout, 30 * time.Second},
		{&c.DrainTimeout, 10 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.Propagator == nil {
		c.Propagator = otel.GetTextMapPropagator()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports everything that is wrong with the configuration, apart from Schema. It expects one that has its defaults.
func (c RelayConfig) Validate() error {
	var errs []error
	for _, n := range []struct {
		name       string
		value, max int
	}{{"BatchSize", c.BatchSize, 10_000}, {"MaxInFlight", c.MaxInFlight, 100_000}, {"MaxAttempts", c.MaxAttempts, 1000}} {
		if n.value < 1 || n.value > n.max {
			errs = append(errs, fmt.Errorf("RelayConfig.%s is %d: want 1 to %d, or 0 for the default", n.name, n.value, n.max))
		}
	}
	switch {
	case c.Delivery != AtLeastOnce && c.Delivery != Transactional:
		errs = append(errs, fmt.Errorf("RelayConfig.Delivery is %v: want AtLeastOnce or Transactional", c.Delivery))
	case c.Delivery == Transactional && c.MaxInFlight > maxTransactionalInFlight:
		errs = append(errs, fmt.Errorf("RelayConfig.MaxInFlight is %d: want at most %d where Delivery is Transactional: each transaction carries the IDs of that many events", c.MaxInFlight, maxTransactionalInFlight))
	}
	if c.Archive != 0 && c.Archive < time.Hour {
		errs = append(errs, fmt.Errorf("RelayConfig.Archive is %v: want 1h or more, or 0 for no archive", c.Archive))
	}
	for _, d := range []struct {
		name       string
		value, min time.Duration
	}{
		{"PollInterval", c.PollInterval, 10 * time.Millisecond},
		{"LeaseTTL", c.LeaseTTL, 500 * time.Millisecond},
		{"PublishTimeout", c.PublishTimeout, time.Millisecond},
		{"DrainTimeout", c.DrainTimeout, time.Millisecond},
	} {
		if d.value < d.min {
			errs = append(errs, fmt.Errorf("RelayConfig.%s is %v: want %v or more, or 0 for the default", d.name, d.value, d.min))
		}
	}
	return errors.Join(append(errs, c.Retry.Validate("RelayConfig.Retry"), c.Retry.RefuseIgnore("RelayConfig.Retry"))...)
}

// retry is relay.Config.Retry.
func (c RelayConfig) retry(topic string, err error, attempts int) (dead bool, wait time.Duration) {
	r := c.Retry.For(topic, err, retry.Rule{MaxAttempts: c.MaxAttempts, Backoff: 100 * time.Millisecond, MaxBackoff: time.Minute})
	return r.Dead || attempts >= r.MaxAttempts, r.Wait(attempts)
}

// Relay forwards committed events to a broker. Any number of relays, in any number of processes, share the work: each
// shard belongs to one of them at a time. Run does the work; Nudge may be called concurrently with it.
type Relay struct {
	cfg       RelayConfig
	pool      *pgxpool.Pool
	publisher message.Publisher
	store     *store.Relay
	reader    *store.Reader
	gaps      func() gaps.Tracker
	pause     time.Duration // how long the crash guard sets an event aside
	delayed   string        // the statement that moves delayed events
	observer  *observer
	once      *once // nil: at least once
	running   atomic.Bool
	begun     chan struct{} // closed when it has started
	wakes     *wake.Collector
	counting  *registration
	counted   tally.Tally[store.Counted] // by topic, for the journal
	journal   time.Duration              // between two writes of it

	mu       sync.Mutex
	shards   []int16 // that this relay holds
	gapCount int
	topics   []step.TopicState // whose events wait
}

// NewRelay returns a relay that publishes with publisher, faster where that is a transport.BatchPublisher. Events keep their
// order per key where the publisher makes the event's key (transport.Key) the broker's own. Millrace's transports do.
// watermill-kafka does with kafka.Marshaler, and watermill-googlecloud with NewOrderingMarshaler and EnableMessageOrdering; with
// their default marshalers the events of a key lose their order on the way, which the relay cannot see. Pool and
// publisher stay the caller's. The relay uses up to five connections of the pool, and more while it works on failed events.
// It opens two of its own: for its leases, and for LISTEN unless PollOnly is set.
func NewRelay(pool *pgxpool.Pool, publisher message.Publisher, cfg RelayConfig) (*Relay, error) {
	var errs []error
	if pool == nil {
		errs = append(errs, errors.New("pool is nil: want the *pgxpool.Pool of the database that holds the outbox"))
	}
	if publisher == nil {
		errs = append(errs, errors.New("publisher is nil: want the publisher of a transport"))
	}
	if _, ok := publisher.(*Publisher); ok {
		errs = append(errs, errors.New("publisher is the outbox's own: want the publisher of a transport"))
	}
	if _, ok := publisher.(transport.TransactionalPublisher); cfg.Delivery == Transactional && publisher != nil && !ok {
		errs = append(errs, fmt.Errorf("RelayConfig.Delivery is Transactional, and %T has no transactions: want transport.PlainPublisher of the Kafka transport, or AtLeastOnce", publisher))
	}
	schema, err := pgschema.Validate(cfg.Schema)
	if err != nil {
		errs = append(errs, fmt.Errorf("RelayConfig.%w", err))
	}
	cfg.Schema = schema
	cfg = cfg.WithDefaults()
	if err := errors.Join(append(errs, cfg.Validate())...); err != nil {
		return nil, fmt.Errorf("outbox relay: %w", err)
	}
	observer, err := newObserver(cfg)
	if err != nil {
		return nil, fmt.Errorf("outbox relay: create its instruments: %w", err)
	}
	statements := store.NewRelay(pool, schema, uuid.New(), self.Name, cfg.LeaseTTL, cfg.Archive)
	statements.Broker, statements.Durable = cfg.Broker, cfg.Delivery == Transactional
	return &Relay{
		cfg: cfg, pool: pool, publisher: publisher, store: statements,
		reader: store.NewReader(pool, schema), gaps: gaps.New, pause: time.Minute, delayed: store.Query("delayed_move", schema),
		observer: observer, wakes: wake.New(), begun: make(chan struct{}), counting: &registration{broker: cfg.Broker},
		counted: tally.Tally[store.Counted]{Most: maxCounted}, journal: journalEvery,
	}, nil
}

// mayWrite refuses a role whose transactions cannot write: every step of the relay would fail.
func (r *Relay) mayWrite(ctx context.Context) error {
	var readOnly bool
	err := r.pool.QueryRow(ctx, `select current_setting('default_transaction_read_only')::boolean`).Scan(&readOnly)
	if err == nil && readOnly {
		return errors.New(`transactions of this connection are read-only (default_transaction_read_only is on): ` +
			`run "alter role … set default_transaction_read_only = off", or connect as a role that may write`)
	}
	return err
}

// Nudge makes the relay look for events now: call it after a commit that Millrace did not make. It never blocks.
func (r *Relay) Nudge() { r.wakes.Add(nil) }

// Running returns a channel that is closed when Run has checked what it needs, and forwards events.
func (r *Relay) Running() <-chan struct{} { return r.begun }

// Run forwards events until ctx ends. Then it takes no further batch, lets those in flight finish within DrainTimeout,
// gives its shards back and returns nil. It returns an error when it cannot start: the database does not answer,
// its schema does not fit, its role cannot write, or the relay has run before; and when the fleet publishes to another broker than
// RelayConfig.Broker, with the same end. Later failures of database and broker are retried with backoff.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("run outbox relay: it has run before: create another with NewRelay")
	}
	err := store.Migrations.Check(ctx, r.pool, r.cfg.Schema)
	if err == nil {
		err = r.mayWrite(ctx)
	}
	if err == nil && r.cfg.Archive > 0 {
		err = r.store.KeepArchive(ctx)
	}
	if err == nil && r.cfg.Delivery == Transactional {
		r.once, err = newOnce(ctx, r)
	}
	switch {
	case ctx.Err() != nil: // it was stopped before it had begun
		return nil
	case err != nil:
		return fmt.Errorf("run outbox relay: %w", err)
	}
	stopObserving, err := r.observer.start(r)
	if err != nil {
		return fmt.Errorf("run outbox relay: report metrics: %w", err)
	}
	defer stopObserving()
	defer wake.Listen(r.cfg.Schema, r.wakes)()

	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)

	// What is in flight when ctx ends gets DrainTimeout to finish.
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(r.cfg.DrainTimeout, cancel) })()

	var loops sync.WaitGroup
	if !r.cfg.PollOnly {
		loops.Go(func() { r.listen(ctx) })
	}
	if r.cfg.Archive > 0 {
		loops.Go(func() { r.keepArchive(ctx) })
	}
	close(r.begun)
	newLoop(hard, end, r).run(ctx)
	loops.Wait()
	r.writeJournal(context.WithoutCancel(ctx))
	if err := r.store.Leave(hard); err != nil {
		r.cfg.Logger.WarnContext(ctx, "give the shards of the outbox back", "error", err)
	}
	if r.once != nil {
		r.once.close()
	}
	if err := context.Cause(ctx); errors.Is(err, store.ErrElsewhere) {
		return fmt.Errorf("run outbox relay: %w", err)
	}
	return nil
}
