// Package claim is the idempotent consumer: Watermill router middleware that claims an event by its ID, so that any
// number of deliveries has one effect.
//
// With the PostgreSQL store the claim, the handler's writes and the events that it publishes are one transaction. The
// handler finds it with pgtx.From(msg.Context()); messages that it returns are staged in the outbox inside it. So the
// effect happens once per consumer and event ID within that database. It does not cover effects elsewhere, such as a
// text message sent by a provider: a process that dies between such a call and the commit repeats the call.
package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/internal/service"
	"github.com/millrace-go/millrace/middleware/claim/internal/batch"
	"github.com/millrace-go/millrace/middleware/claim/internal/crashguard"
	"github.com/millrace-go/millrace/middleware/claim/internal/fault"
	"github.com/millrace-go/millrace/middleware/claim/internal/redelivery"
	"github.com/millrace-go/millrace/middleware/claim/internal/store"
	"github.com/millrace-go/millrace/middleware/claim/internal/telemetry"
	"github.com/millrace-go/millrace/middleware/internal/inbox"
	"github.com/millrace-go/millrace/retry"
	"github.com/millrace-go/millrace/transport"
)

var (
	// ErrContended means that another consumer holds the claim at this moment. The middleware nacks the message, so
	// that it comes back in case the other one fails.
	ErrContended = store.ErrContended

	// ErrCompleted means that the event was processed before. The middleware acks the message.
	ErrCompleted = store.ErrCompleted

	// ErrBlocked means that an earlier event of the same key failed and was kept: this one has to wait behind it.
	ErrBlocked = store.ErrBlocked

	// ErrTooOld means that the event is older than what is still recorded, so that nobody can tell whether it was
	// processed before. An operator who knows may replay it.
	ErrTooOld = store.ErrTooOld

	// ErrClock means that the event's ID is from the future. The clock of the producer that minted it is wrong.
	ErrClock = store.ErrClock

	// ErrNoEventID means that a message cannot be told from its duplicates. Give it an ID where the event happens, or
	// set Config.EventID.
	ErrNoEventID = errors.New("the message has no event ID")
)

// maxBlocked bounds Config.MaxBlocked: at the limit the events are counted.
const maxBlocked = 1_000_000

// Key names one effect: an event as one consumer sees it. Consumer and EventID identify it.
type Key struct {
	// Consumer is "service/name": see Config.Service and Config.Consumer.
	Consumer, EventID string

	// Order is the event's ordering key when its consumer is configured to keep the order of events that fail; else "".
	Order string

	// Due is when a delayed event was due; zero for one that was not delayed.
	Due time.Time
}

// Store keeps the claims.
type Store interface {
	// Do claims key, calls fn and completes the claim if fn returned nil. When fn fails or panics, or the process
	// dies, the claim has never existed. It returns ErrContended or ErrCompleted, without calling fn, when another
	// one holds the claim or has completed it, and fn's error if there is one. The context's deadline is when fn
	// should be done.
	Do(ctx context.Context, key Key, fn func(ctx context.Context) error) error

	// Stage hands over a message that the handler returned; ctx is that of fn. It is sent to topic if and, apart from
	// the stores that say otherwise, only if the claim is completed.
	Stage(ctx context.Context, topic string, msgs ...*message.Message) error
}

// Config configures a Claim. All but Service has a default.
type Config struct {
	// Service is the name of the service. Each of its consumers is stored as "service/name", so that handlers of the same
	// name in two services never take each other's events for duplicates, in one database or one Redis; and a process that
	// is killed makes only the processes of its own service careful (see Run). Renaming it makes redelivered events run
	// again. 1 to 100 letters, digits, ".", "_" and "-", starting with a letter. Required.
	Service string

	// Consumer names the scope of a claim within the service: each event has one effect in each. Renaming it makes
	// redelivered events run again. Default: the name of the router's handler.
	Consumer func(handler string) string

	// EventID tells an event from others. Duplicates must have the same; the ID that the broker gives to a message is
	// never it. Default: the message's UUID.
	EventID func(msg *message.Message) (string, error)

	// Ordered blocks later events of a key (transport.Key) while an earlier one is retried or dead. The consumer's
	// subscriber must deliver the events of a key in order. Wrap it with Claim.Subscriber, which alone retries blocked
	// events after an operator has replayed or discarded the dead letter. Default: false.
	Ordered bool

	// MaxBlocked is how many events of a key may wait in the database, with Ordered, behind one that failed. The broker keeps those that
	// follow: they are nacked every few seconds until there is room, and count no attempt. So one dead letter does not fill the
	// database. But messages that the broker keeps hold up others once there are many: on Kafka, those of their partition
	// (kafka.ConsumerConfig.Prefetch); on Pub/Sub, those of the subscription (Concurrency and Prefetch). A push subscription of
	// Pub/Sub may count a wait as a delivery, as with Breaker. 1 to 1,000,000, such as 10,000. Default: 0, no limit.
	MaxBlocked int

	// MaxAttempts is the number of failed attempts of its handler after which an event becomes a dead letter. The database
	// counts them over all processes. An outage of the database does not count, nor does an error with a method
	// RetryAfter() time.Duration, which only says when to retry. 1 or more. Default: 10.
	MaxAttempts int

	// Backoff returns how long an event waits after the given number of failed attempts, 1 or more. If the broker
	// redelivers the event (see Claim.Subscriber), some transports ignore it. Default: 1 s, doubling to 1 min, less a
	// random quarter.
	Backoff func(attempt int) time.Duration

	// Retry has rules for topics and errors: other attempts, another backoff, that an event is dead at once, or that its failure is
	// ignored, so that the event counts as processed without effect. The first rule that fits decides, and those of Handlers come first.
	// Its errors are those that handlers return, also of a panic and a deadline; an outage of the database, and an error with
	// RetryAfter, are no failures. An error that is marked with Permanent is retried by no rule. Default: none.
	Retry retry.Policy

	// Handlers configures single consumers, by the names that Consumer returns. Default: none, all are alike.
	Handlers map[string]HandlerConfig

	// MaxPerKey is how many events of a key, such as a tenant, each consumer handles at once, in all processes on the database. Others
	// wait as contended ones do, and count no attempt; those that have waited longest go first within a process. It costs a statement for
	// each event that has a key, and nothing where nobody is limited. With a push subscription of Pub/Sub a wait may be a delivery
	// that its own dead-letter policy counts, as with Breaker. 1 to 100; only with NewPostgresStore's store itself. Default: 0, no
	// limit.
	MaxPerKey int

	// LimitKey tells the key that MaxPerKey counts. Events with "" are not limited. Default: the ordering key (transport.Key).
	LimitKey func(msg *message.Message) string

	// Breaker pauses a consumer while what its handler needs is out. It is off by default: it cannot tell an outage from many events
	// in a row that fail for reasons of their own, which then keep the events behind them waiting.
	Breaker Breaker

	// DeadLetterTopic is where a copy of each dead letter is sent, through the outbox, with the reason in its metadata
	// (DeadReasonMetadata and others). Default: none is sent.
	DeadLetterTopic string

	// HandlerTimeout bounds a handler's run with its transaction, including the wait for a connection of the pool. A
	// timeout counts no attempt if that wait took more than half of it. The handler's context ends at the timeout, not
	// when the router closes, so running handlers may finish. 1 ms or more. Default: 30 s.
	HandlerTimeout time.Duration

	// MaxStarts limits how often a poison message may kill its process. An event that was in flight when a process was
	// killed is run alone; after it has killed MaxStarts such runs it becomes a dead letter. It needs Run. 1 or more.
	// Default: 3.
	MaxStarts int

	// Retention is how long the PostgreSQL store keeps the record that an event was processed. It counts from the time in
	// the event's UUIDv7 (for a delayed event, from when it was due), else from its claim. An older event is not run,
	// because nobody knows whether it was processed: see ErrTooOld. 24 h or more. Default: DefaultRetention, 14 days.
	Retention time.Duration

	// RedeliveryHorizon is how long after an event's creation the broker may still deliver it: see CheckWindow. New
	// refuses a shorter Retention. Default: DefaultRedeliveryHorizon, 7 days.
	RedeliveryHorizon time.Duration

	// RunTooOld runs events that cannot be proved new (ErrTooOld, ErrClock), which may have been processed before.
	// Default: false.
	RunTooOld bool

	// Group is how many messages of a consumer may share one transaction. Their handlers run one after the other, each in
	// its own savepoint: if one fails, only its writes are rolled back. The acks follow the common commit. Use it for
	// quick handlers that wait only for the database, and use only the transaction's connection. The subscriber's
	// concurrency should be a few times as high. If the transaction fails as a whole, each message is repeated in its own
	// transaction. A handler that leaves something in its transaction beside writes (SET LOCAL, set_config, SET ROLE, a temporary
	// table, a cursor) is undone and handled alone; handlers that do so as a rule belong in no group. From 2 to 50; only with
	// NewPostgresStore's store itself. Default: 0, none.
	Group int

	// Deferred commits without waiting for the disk. The ack waits for a later flush, which many claims share, so a crash
	// of the database loses only claims that were not acked. It is for consumers that handle one message after the other,
	// whose transports continue at Delivery.Handled. It is not for handlers with effects outside their transaction,
	// because a crash would repeat such an effect. Other transactions may see writes that a crash then loses. Only with
	// NewPostgresStore's store itself. Default: false.
	Deferred bool

	// Lazy claims with the handler's first statement, in one round trip, or with the commit if the handler only queues and
	// publishes: such an event costs one round trip. If the claim is refused, the server executes nothing of the handler, its
	// first statement returns an error, and the event is acked or nacked as ever, whatever the handler makes of the error. But
	// what the handler does outside of its transaction before its first statement happens for each delivery, duplicates
	// included. Call Ensure before that; the effect ledger does. Not with Group; only with NewPostgresStore's store itself.
	// Default: false.
	Lazy bool

	// MeterProvider receives the metrics named millrace.claim. Default: otel.GetMeterProvider().
	MeterProvider metric.MeterProvider

	// TracerProvider receives a span for each delivery, around the handler, with what became of it. Default:
	// otel.GetTracerProvider().
	TracerProvider trace.TracerProvider

	// Propagator reads the trace context in the message's metadata where the message's context has no span: the subscriber
	// does not trace, or the event comes from the table of those that failed. Default: otel.GetTextMapPropagator().
	Propagator propagation.TextMapPropagator

	// Logger gets duplicates and contention, at debug level, failed attempts that the router does not see, and dead letters.
	// Default: slog.Default().
	Logger *slog.Logger
}

// WithDefaults returns the configuration with every zero field set to its default.
func (c Config) WithDefaults() Config {
	if c.Consumer == nil {
		c.Consumer = func(handler string) string { return handler }
	}
	if c.EventID == nil {
		c.EventID = func(msg *message.Message) (string, error) { return msg.UUID, nil }
	}
	if c.HandlerTimeout == 0 {
		c.HandlerTimeout = 30 * time.Second
	}
	if c.MaxStarts == 0 {
		c.MaxStarts = 3
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 10
	}
	if c.Backoff == nil {
		c.Backoff = fault.Backoff
	}
	c.Breaker = c.Breaker.withDefaults()
	if c.LimitKey == nil {
		c.LimitKey = transport.Key
	}
	if c.Retention == 0 {
		c.Retention = DefaultRetention
	}
	if c.RedeliveryHorizon == 0 {
		c.RedeliveryHorizon = DefaultRedeliveryHorizon
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.Propagator == nil {
		c.Propagator = otel.GetTextMapPropagator() // passes on to whatever is set later
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports everything that is wrong with the configuration, whatever its store. It expects one that has its defaults.
func (c Config) Validate() error {
	var errs []error
	if err := service.Validate(c.Service); err != nil {
		errs = append(errs, fmt.Errorf("Config.%w", err))
	}
	if c.MaxAttempts < 1 {
		errs = append(errs, fmt.Errorf("Config.MaxAttempts is %d: want 1 or more, or 0 for the default of 10", c.MaxAttempts))
	}
	if c.MaxBlocked < 0 || c.MaxBlocked > maxBlocked {
		errs = append(errs, fmt.Errorf("Config.MaxBlocked is %d: want 1 to %d, or 0 for no limit", c.MaxBlocked, maxBlocked))
	}
	errs = append(errs, c.Breaker.validate("Config.Breaker", 0), c.validatePolicies())
	if !inbox.IsText(c.DeadLetterTopic) {
		errs = append(errs, fmt.Errorf("Config.DeadLetterTopic is %q: want a topic, UTF-8 without NUL bytes", c.DeadLetterTopic))
	}
	if c.HandlerTimeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("Config.HandlerTimeout is %v: want 1ms or more, or 0 for the default", c.HandlerTimeout))
	}
	if c.MaxStarts < 1 {
		errs = append(errs, fmt.Errorf("Config.MaxStarts is %d: want 1 or more, or 0 for the default", c.MaxStarts))
	}
	if c.Retention < minRetention {
		errs = append(errs, fmt.Errorf("Config.Retention is %v: want %v or more, or 0 for the default", c.Retention, minRetention))
	} else if err := CheckWindow(c.Retention, c.RedeliveryHorizon); err != nil {
		errs = append(errs, fmt.Errorf("Config.%w", err))
	}
	if c.RedeliveryHorizon < 0 {
		errs = append(errs, fmt.Errorf("Config.RedeliveryHorizon is %v: want 1ns or more, or 0 for the default", c.RedeliveryHorizon))
	}
	if c.Group < 0 || c.Group == 1 || c.Group > batch.Most {
		errs = append(errs, fmt.Errorf("Config.Group is %d: want 2 to %d, or 0 for none", c.Group, batch.Most))
	}
	if c.Lazy && c.Group != 0 {
		errs = append(errs, fmt.Errorf("Config.Lazy is true and Config.Group is %d: want one of them, because a group claims all of its events at once", c.Group))
	}
	return errors.Join(errs...)
}

// Claim makes handlers idempotent. It is safe for concurrent use.
type Claim struct {
	store      Store
	cfg        Config
	groups     scopes
	observer   *telemetry.Observer
	guard      *crashguard.Guard
	postgres   *store.Postgres // store, or what is behind it; nil: attempts are not counted, and nothing is kept
	redelivery *redelivery.Redelivery
	modes      modes
	inHand     sync.Map // [2]string{consumer, event ID} of what runs singly
	counted    sync.Map // consumers whose handlers are wrapped by Handler
	early      sync.Map // consumers whose messages are acked too early, which was logged
	nested     sync.Map // consumers whose nested claim was logged
	routed     sync.Map // [2]string{consumer, event ID} of what runs and came through a router
	losses     fault.Losses
	breakers   sync.Map // consumer → *breaker
	slots      slots
}

// consumer returns the name that the store knows a handler's consumer by, "" if the consumer has no name.
func (c *Claim) consumer(handler string) string { return c.scoped(c.cfg.Consumer(handler)) }

func (c *Claim) scoped(name string) string {
	if name == "" {
		return ""
	}
	return service.Scoped(c.cfg.Service, name)
}

// New returns a Claim that keeps its claims in that store.
func New(of Store, cfg Config) (*Claim, error) {
	var errs []error
	if of == nil {
		errs = append(errs, errors.New("store is nil: want claim.NewPostgresStore(pool)"))
	} else if v, ok := of.(interface{ validate() error }); ok {
		errs = append(errs, v.validate())
	}
	postgres := postgresOf(of)
	if postgres == nil {
		errs = append(errs, cfg.withoutPostgres())
	}
	cfg = cfg.WithDefaults()
	errs = append(errs, cfg.Validate())
	if err := cfg.validateModes(of); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	o, err := telemetry.New(telemetry.Config{MeterProvider: cfg.MeterProvider, TracerProvider: cfg.TracerProvider, Propagator: cfg.Propagator})
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	c := &Claim{store: of, cfg: cfg, observer: o, postgres: postgres}
	c.modes = c.newModes()
	c.guard = crashguard.New(crashguard.Config{
		Store: postgres, Service: cfg.Service, MaxStarts: cfg.MaxStarts, Logger: cfg.Logger, Timeout: cfg.timeout, Longest: cfg.longest(), Pauses: c.pauses,
		Journal: func(ctx context.Context, db store.Execer, run int64) error {
			return o.Write(ctx, db, postgres.Schema, run)
		},
	})
	c.redelivery = redelivery.New(redelivery.Config{
		Store: postgres, Logger: cfg.Logger, Timeout: cfg.timeout, Room: c.retries, Ahead: cfg.Deferred,
	})
	return c, nil
}
