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
	"github.com/millrace-go/millrace/outbox/internal/landing"
	"github.com/millrace-go/millrace/outbox/internal/observe"
	"github.com/millrace-go/millrace/outbox/internal/registration"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/wake"
	"github.com/millrace-go/millrace/outbox/internal/wal"
	"github.com/millrace-go/millrace/retry"
	"github.com/millrace-go/millrace/transport"
)

// RelayConfig configures a Relay. Its zero value is ready for use.
type RelayConfig struct {
	// Schema of the outbox's tables. Default: "millrace".
	Schema string

	// BatchSize is how many events of a shard the relay reads at once, and at most how many go into one batch, 1 to 10,000. Default:
	// 1,000.
	BatchSize int

	// MaxInFlight is how many events of a shard may be in flight: sent to the broker and not deleted yet. One topic may use at most
	// half of it, so that a slow topic leaves room for others. If a relay is killed, at most this many events are published
	// again, with the same IDs. 1 to 100,000. Default: 2,000.
	MaxInFlight int

	// MaxAttempts is how often an event may fail, while the broker takes other events of its topic, before it is dead. A dead event
	// blocks its key until an operator decides about it. An error that wraps transport.ErrRejected makes an event dead at once;
	// an outage of the broker never does. If another event that had failed with the same error is published later, the dead event is
	// retried once more, because the error may not have been its own fault. The relay retries after 100 ms, then after twice that, up
	// to a minute. 1 to 1,000. Default: 10.
	MaxAttempts int

	// Retry has rules for topics and errors: another number of attempts, another backoff, or that an event is dead at once. The first
	// matching rule decides. Rules apply only to failures that count as attempts: whatever they say, an event waits in an outage, and is
	// dead if its error wraps transport.ErrRejected. Default: none.
	Retry retry.Policy

	// Delivery is how often an event may be published. Transactional needs Kafka. Each batch and a record of the published events are
	// then one transaction of the brokers, and a relay that takes over a shard ends its predecessor's transactions. Consumers with
	// read_committed isolation get each event once, and wait for open transactions. A shard sends one batch at a time on its own
	// connections, and MaxInFlight may be at most 20,000. docs/guarantees.md lists what Transactional does not cover.
	// Default: AtLeastOnce.
	Delivery Delivery

	// Archive is how long published events are kept in the table outbox_archive, for replay and for "millrace explain". Give all relays
	// of a schema the same: the shortest counts.
	// The relay drops whole days. 1 h or more. Default: 0, events are not kept.
	Archive time.Duration

	// Source is where the relay finds new events. WAL reads them from PostgreSQL's write-ahead log, in the order of their commits and without
	// a notification, whichever program wrote them. It needs wal_level = logical, a role with REPLICATION, and a direct connection. One relay
	// reads the WAL and forwards the events of all shards; the others stand by. Give all relays of a schema the same Source.
	// docs/operations.md says what the server needs and what to watch. Default: Table.
	Source Source

	// Store says where publishers write events. Log makes one relay land the events that publishers with Store Log write into the WAL: it
	// inserts them into the outbox, and relays publish them like all rows. It needs what Source WAL needs. PostgreSQL keeps all WAL that no
	// relay has landed, so its disk fills up while no relay runs. Give all relays of a schema the same Store.
	// docs/operations.md says what the server needs and what to watch. Default: Rows.
	Store Store

	// PollInterval is how often the relay looks for events that no wake-up announced, such as those of transactions that Millrace did
	// not begin. 10 ms or more. Default: 1 s.
	PollInterval time.Duration

	// PollOnly makes the relay find events by polling only, without a connection for LISTEN. Use it with a pooler in transaction mode,
	// or where connections are scarce. Default: false.
	PollOnly bool

	// LeaseTTL is how long the shards of a killed relay stay without a relay. A relay that has not renewed its leases for this long
	// sends nothing. 500 ms or more. Default: 5 s.
	LeaseTTL time.Duration

	// PublishTimeout bounds one batch of a transport.BatchPublisher. Other publishers get no context: their Publish must return by
	// itself. Events that are not acknowledged in time are published again. If a call takes twice as long, the relay loses the shard
	// and another relay publishes its events. Default: 30 s.
	PublishTimeout time.Duration

	// DrainTimeout is how long Run waits for the batches in flight after its context has ended. Then Run cancels them. Default: 10 s.
	DrainTimeout time.Duration

	// Broker is the configured name of the broker that the publisher publishes to. The relay does not run while the record of a
	// migration to another broker names a different one: see outbox/brokermigration. CloudEvents that were stored for another broker
	// get the header names of this one. Default: "", the relay does neither. Leave it empty with a brokermigration.Transport, which
	// does both itself.
	Broker string

	// Database is the attribute millrace.database of the relay's metrics. It tells the relays of one process apart. Default: "",
	// no such attribute.
	Database string

	// MeterProvider and TracerProvider receive the relay's metrics and spans. Each batch has one span, linked to the spans in which
	// its events were published. Default: OpenTelemetry's global providers.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider

	// Propagator reads the trace context in the events' metadata. Default: otel.GetTextMapPropagator().
	Propagator propagation.TextMapPropagator

	// Logger logs failures and what the relay retries. Default: slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns the configuration with each zero field set to its default, except Schema.
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

// Validate reports all invalid fields, except Schema. Call WithDefaults first.
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
	if c.Source != Table && c.Source != WAL {
		errs = append(errs, fmt.Errorf("RelayConfig.Source is %v: want Table or WAL", c.Source))
	}
	if c.Store != Rows && c.Store != Log {
		errs = append(errs, fmt.Errorf("RelayConfig.Store is %v: want Rows or Log", c.Store))
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

// retry is the function for relay.Config.Retry.
func (c RelayConfig) retry(topic string, err error, attempts int) (dead bool, wait time.Duration) {
	r := c.Retry.For(topic, err, retry.Rule{MaxAttempts: c.MaxAttempts, Backoff: 100 * time.Millisecond, MaxBackoff: time.Minute})
	return r.Dead || attempts >= r.MaxAttempts, r.Wait(attempts)
}

// Relay forwards committed events to a broker. Any number of relays, in any number of processes, share the work: each
// shard belongs to one relay at a time. Run may be called once; Nudge is safe for concurrent use.
type Relay struct {
	cfg       RelayConfig
	pool      *pgxpool.Pool
	publisher message.Publisher
	store     *store.Relay
	reader    *store.Reader
	source    source           // reader, or the WAL in front of it
	wal       *wal.Stream      // nil if Source is Table
	landing   *landing.Landing // nil if Store is Rows
	keep      time.Duration    // how long it keeps the WAL although it publishes nothing
	keepUntil time.Time
	gaps      func() gaps.Tracker
	pause     time.Duration // how long the crash guard sets an event aside
	delayed   string        // the statement that moves delayed events
	observer  *observe.Observer
	once      *once // nil if Delivery is AtLeastOnce
	running   atomic.Bool
	begun     chan struct{} // closed when Run has started to forward events
	wakes     *wake.Collector
	counting  *registration.Registration
	counted   tally.Tally[store.Counted] // by topic, for the journal
	journal   time.Duration              // between two writes of it

	mu       sync.Mutex
	shards   []int16 // shards that this relay holds
	gapCount int
	topics   []step.TopicState // topics whose events wait
}

// NewRelay returns a relay that publishes with publisher. It is faster if publisher is a transport.BatchPublisher. Events of a key
// keep their order only if the publisher uses the event's key (transport.Key) as the broker's key. Millrace's transports do, and so do
// watermill-kafka with kafka.Marshaler and watermill-googlecloud with NewOrderingMarshaler and EnableMessageOrdering. With the
// default marshalers of both, events of a key lose their order on the way, and the relay cannot detect that. The publisher must not
// change the bytes of a payload, because the relay may send them again. The caller
// keeps ownership of pool and publisher. The relay uses up to five connections of the pool, and more while it works on failed events.
// It opens two connections of its own: for its leases, and for LISTEN unless PollOnly is set. It opens one more where Source is WAL, and two
// where Store is Log.
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
	observer, err := observe.New(cfg.MeterProvider, cfg.TracerProvider, cfg.Propagator, cfg.Database)
	if err != nil {
		return nil, fmt.Errorf("outbox relay: create its instruments: %w", err)
	}
	id := uuid.New()
	statements := store.NewRelay(pool, schema, id, self.Name, cfg.LeaseTTL, cfg.Archive)
	statements.Broker, statements.Durable = cfg.Broker, cfg.Delivery == Transactional
	r := &Relay{
		cfg: cfg, pool: pool, publisher: publisher, store: statements,
		reader: store.NewReader(pool, schema), gaps: gaps.New, pause: time.Minute, delayed: store.Query("delayed_move", schema),
		observer: observer, wakes: wake.New(), begun: make(chan struct{}), counting: &registration.Registration{Broker: cfg.Broker},
		counted: tally.Tally[store.Counted]{Most: maxCounted}, journal: journalEvery,
	}
	r.source = r.reader
	if cfg.Source == WAL {
		r.wal = wal.New(store.NewWAL(pool, schema, id, cfg.LeaseTTL), r.wakes, cfg.Logger, cfg.PollInterval)
		r.source = wal.NewReader(r.reader, r.wal.Buffer, r.wakes)
	}
	if cfg.Store == Log {
		r.landing = landing.New(store.NewLanding(pool, schema, id, cfg.LeaseTTL), schema, cfg.LeaseTTL, cfg.Logger)
	}
	return r, nil
}

// mayWrite returns an error if the role's transactions cannot write, because then each step of the relay would fail.
func (r *Relay) mayWrite(ctx context.Context) error {
	var readOnly bool
	err := r.pool.QueryRow(ctx, `select current_setting('default_transaction_read_only')::boolean`).Scan(&readOnly)
	if err == nil && readOnly {
		return errors.New(`transactions of this connection are read-only (default_transaction_read_only is on): ` +
			`run "alter role … set default_transaction_read_only = off", or connect as a role that may write`)
	}
	return err
}

// Nudge makes the relay look for events now. Call it after a commit that Millrace did not make. It never blocks.
func (r *Relay) Nudge() { r.wakes.Add(nil) }

// Running returns a channel that is closed when Run has finished its checks and forwards events.
func (r *Relay) Running() <-chan struct{} { return r.begun }

// Run forwards events until ctx ends. Then it starts no further batch, waits up to DrainTimeout for the batches in flight,
// gives its shards back and returns nil. It returns an error if it cannot start: the database does not answer,
// its schema does not fit, its role cannot write, or the relay has run before. It also ends in this way, and returns an error, when
// the fleet publishes to another broker than RelayConfig.Broker. Run retries later failures of database and broker with backoff.
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
	if err == nil && r.wal != nil {
		if err = r.wal.Check(ctx); err != nil {
			err = fmt.Errorf("RelayConfig.Source is WAL: %w", err)
		}
	}
	if err == nil && r.landing != nil {
		if err = r.landing.Check(ctx); err != nil {
			err = fmt.Errorf("RelayConfig.Store is Log: %w", err)
		}
	}
	if err == nil && r.cfg.Delivery == Transactional {
		r.once, err = newOnce(ctx, r)
	}
	switch {
	case ctx.Err() != nil: // stopped before it had started
		return nil
	case err != nil:
		return fmt.Errorf("run outbox relay: %w", err)
	}
	stopObserving, err := r.observer.Start(r.store, r.wal != nil, r.landing != nil, r.status)
	if err != nil {
		return fmt.Errorf("run outbox relay: report metrics: %w", err)
	}
	defer stopObserving()
	defer wake.Listen(r.cfg.Schema, r.wakes)()

	listening, end := context.WithCancel(ctx)
	defer end()
	var loops sync.WaitGroup
	if !r.cfg.PollOnly {
		loops.Go(func() { r.listen(listening) })
	}
	if r.cfg.Archive > 0 {
		loops.Go(func() { r.keepArchive(listening) })
	}
	if r.landing != nil {
		loops.Go(func() { r.landing.Run(listening) })
	}
	close(r.begun)
	err = r.forward(ctx)
	end()
	loops.Wait()
	if r.once != nil {
		r.once.close()
	}
	if errors.Is(err, store.ErrElsewhere) {
		return fmt.Errorf("run outbox relay: %w", err)
	}
	return nil
}
