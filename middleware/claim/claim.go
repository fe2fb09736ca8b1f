// Package claim is the idempotent consumer: middleware for Watermill's router that claims an event by its ID, so that any
// number of deliveries has one effect. Others call this an inbox.
//
// With the PostgreSQL store, one transaction contains the claim, the handler's writes and the events that the handler
// publishes. The handler gets the transaction from pgtx.From(msg.Context()). Messages that the handler returns are written
// to the outbox in it. So the effect happens once for each consumer and event ID within that database. Effects elsewhere, such
// as a text message sent by a provider, are not covered: a process that dies between such a call and the commit repeats the call.
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
	// ErrContended means that another delivery of the event holds the claim now. The middleware nacks the message, so that it
	// is redelivered in case the other delivery fails.
	ErrContended = store.ErrContended

	// ErrCompleted means that the event was processed before. The middleware acks the message.
	ErrCompleted = store.ErrCompleted

	// ErrBlocked means that an earlier event of the same key failed and was kept, so this event has to wait behind it.
	ErrBlocked = store.ErrBlocked

	// ErrTooOld means that the event is older than the records that are kept, so nobody can tell whether it was processed
	// before. An operator who knows that it was not may replay it.
	ErrTooOld = store.ErrTooOld

	// ErrClock means that the time in the event's ID is in the future: the clock of the producer that made the ID is wrong.
	ErrClock = store.ErrClock

	// ErrNoEventID means that a message has no ID, so it cannot be told from its duplicates. Have the producer set an ID, or
	// set Config.EventID.
	ErrNoEventID = errors.New("the message has no event ID")
)

// maxBlocked bounds Config.MaxBlocked, because at the limit a statement counts the key's events.
const maxBlocked = 1_000_000

// Key names one effect: one event for one consumer. Consumer and EventID identify it.
type Key struct {
	// Consumer is "service/name": see Config.Service and Config.Consumer.
	Consumer, EventID string

	// Order is the event's ordering key if its consumer keeps the order of failed events (Config.Ordered), else "".
	Order string

	// Due is when a delayed event was due. It is zero for an event that was not delayed.
	Due time.Time
}

// Store keeps the claims.
type Store interface {
	// Do claims key, calls fn, and completes the claim if fn returns nil. If fn fails or panics, or the process dies, no trace
	// of the claim is left. Do returns ErrContended if another delivery holds the claim, and ErrCompleted if the claim was
	// completed before, both without calling fn. If fn returns an error, so does Do. fn should end before the context's deadline.
	Do(ctx context.Context, key Key, fn func(ctx context.Context) error) error

	// Stage takes a message that the handler returned. ctx is the context that fn got. The message is sent to topic if the claim is
	// completed, and only then, unless the store's documentation says otherwise.
	Stage(ctx context.Context, topic string, msgs ...*message.Message) error
}

// Config configures a Claim. Every field but Service has a default.
type Config struct {
	// Service is the name of the service. Each of its consumers is stored as "service/name". So handlers of the same name in
	// two services, on one database or one Redis, do not take each other's events for duplicates. And when a process is killed,
	// only processes of its own service guard against poison messages (see Run). After a renaming, redelivered events run
	// again. 1 to 100 letters, digits, ".", "_" and "-", starting with a letter. Required.
	Service string

	// Consumer returns the name of the consumer for a handler. Each event has one effect per consumer. After a renaming,
	// redelivered events run again. Default: the name of the router's handler.
	Consumer func(handler string) string

	// EventID returns the ID of the event in a message. Duplicates of an event must have the same ID, so the ID that the broker
	// gives to a message does not do. An ID has at most 2,000 bytes. Default: the message's UUID.
	EventID func(msg *message.Message) (string, error)

	// Ordered blocks later events of a key (transport.Key) while an earlier one is retried or dead. The consumer's
	// subscriber must deliver the events of a key in order. Wrap it with Claim.Subscriber: nothing else retries blocked
	// events after an operator has replayed or discarded the dead letter. Default: false.
	Ordered bool

	// MaxBlocked is how many events of a key may wait in the database behind one that failed, with Ordered. Further events of the key
	// stay with the broker: they are nacked every few seconds until there is room, and count no attempt. So one dead letter does not
	// fill the database. But many messages that stay with the broker hold up others: on Kafka those of the partition
	// (kafka.ConsumerConfig.Prefetch), on Pub/Sub those of the subscription (Concurrency and Prefetch). A push subscription of
	// Pub/Sub counts each wait toward its dead-letter policy. 1 to 1,000,000, such as 10,000. Default: 0, no limit.
	MaxBlocked int

	// MaxAttempts is the number of failed attempts of its handler after which an event becomes a dead letter. The database
	// counts them over all processes. An outage of the database does not count. An error with a method RetryAfter() time.Duration
	// does not count either: it only says when to retry. 1 or more. Default: 10.
	MaxAttempts int

	// Backoff returns how long an event waits after the given number of failed attempts, which is 1 or more. If the broker
	// redelivers the event (see Claim.Subscriber), some transports ignore the result. Default: 1 s, doubling to 1 min, minus a
	// random amount of up to a quarter.
	Backoff func(attempt int) time.Duration

	// Retry has rules by topic and error: another number of attempts, another backoff, an event that is dead at once, or a failure that
	// is ignored, so that the event counts as processed without effect. The first rule that fits decides; rules of Handlers come first.
	// Rules see the errors of handlers, panics and deadlines included. An outage of the database and an error with RetryAfter
	// are no failures. No rule can retry an error that is marked with Permanent. Default: none.
	Retry retry.Policy

	// Handlers configures single consumers, by the names that Consumer returns. Default: none, every consumer uses this Config.
	Handlers map[string]HandlerConfig

	// MaxPerKey is how many events of a key, such as a tenant, each consumer handles at the same time, in all processes on the database. Further
	// events are nacked and redelivered, and count no attempt. Within a process those that have waited longest go first. The limit costs
	// one statement for each event that has a key, and nothing for consumers without a limit. A push subscription of Pub/Sub
	// counts each wait toward its dead-letter policy. 1 to 100; only with a PostgresStore that no other store wraps. Default: 0, no limit.
	MaxPerKey int

	// LimitKey returns the key that MaxPerKey counts. Events with the key "" are not limited. Default: the ordering key (transport.Key).
	LimitKey func(msg *message.Message) string

	// Breaker pauses a consumer while something that its handler needs is out. It is off by default, because it cannot tell an outage from
	// many events in a row that each fail for a reason of their own. After such a series it would delay the events behind them.
	Breaker Breaker

	// DeadLetterTopic is the topic to which a copy of each dead letter is sent, through the outbox. The copy's metadata has the reason
	// (DeadReasonMetadata and others). A copy keeps the event's ID. So a claimed consumer of the topic handles one copy of an event,
	// and takes the copies that another consumer sends, or that follow a replay, for duplicates. Default: none, no copy is sent.
	DeadLetterTopic string

	// HandlerTimeout bounds a handler's run and its transaction, including the wait for a connection of the pool. A
	// timeout counts no attempt if that wait took more than half of it. The handler's context ends at the timeout, but not
	// when the router closes, so running handlers may finish. 1 ms or more. Default: 30 s.
	HandlerTimeout time.Duration

	// MaxStarts is how many processes a poison message may kill while it runs alone. An event that was in flight when a process
	// was killed is run alone. If it kills MaxStarts processes in such runs, it becomes a dead letter. This needs Run. -1 switches
	// the guard off: no event is marked or run alone, and a poison message kills processes for ever. 1 or more, or -1. Default: 3.
	MaxStarts int

	// Retention is how long the PostgreSQL store keeps the record that an event was processed. It counts from the time in the
	// event's UUIDv7 (for a delayed event from when it was due), or from the claim if the ID has no time. An older event is not
	// run, because nobody knows whether it was processed: see ErrTooOld. Services on one schema share the days of the records. The
	// longest retention counts among those that have called Run. One that has stopped counts for its own retention and a day. 24 h or
	// more. Default: 336 h (14 days), DefaultRetention.
	Retention time.Duration

	// RedeliveryHorizon is how long after an event's creation the broker may still deliver it: see CheckWindow. New
	// refuses a shorter Retention. Default: 168 h (7 days), DefaultRedeliveryHorizon.
	RedeliveryHorizon time.Duration

	// RunTooOld runs events that cannot be proved new (ErrTooOld, ErrClock), although they may have been processed before.
	// Default: false.
	RunTooOld bool

	// Group is not the consumer group: it is how many messages of a consumer share one transaction. Their handlers run in turn, each in its
	// own savepoint: if one fails, only its writes are rolled back. The acks follow the common commit. Use Group for quick
	// handlers that wait only for the database and use only the transaction's connection. The subscriber's concurrency should
	// be a few times as high as Group. If the whole transaction fails, each message is repeated in a transaction of its own. A
	// handler that leaves more than writes in the transaction (SET LOCAL, set_config, SET ROLE, a temporary table, a cursor) is
	// rolled back and run again in a transaction of its own; do not use Group for handlers that do so as a rule. 2 to 50; only with
	// a PostgresStore that no other store wraps. Default: 0, no groups.
	Group int

	// Deferred commits without waiting for the disk. The ack waits for a later flush that many claims share, so a crash of the
	// database loses only claims that were not acked. Use Deferred for consumers that handle one message after the other, if the
	// transport continues at Delivery.Handled; with Ordered, and in a group of OnGroupEvent, the next event of a key waits for the
	// flush. After such a crash, events of a key without Ordered may be handled again in another order. Do not use Deferred for
	// handlers with effects outside their transaction, because a crash would repeat such an effect. Other transactions may see
	// writes that a crash then loses. Change it only while no process of the consumer runs: one without it acks the duplicate of a
	// claim that is not on disk yet. Only with a PostgresStore that no other store wraps. Default: false.
	Deferred bool

	// Lazy sends the claim in one round trip with the handler's first statement, or with the commit if the handler only queues
	// and publishes. Such an event costs one round trip. If the claim is refused, the server executes none of the handler's
	// statements and the first one returns an error. The event is then acked or nacked as usual, whatever the handler does
	// with the error. But what the handler does outside its transaction before its first statement happens at each delivery,
	// duplicates included. Call Ensure before such effects; the effect ledger does. Not with Group; only with a PostgresStore
	// that no other store wraps. Default: false.
	Lazy bool

	// MeterProvider receives the metrics whose names begin with millrace.claim. Default: otel.GetMeterProvider().
	MeterProvider metric.MeterProvider

	// TracerProvider receives a span for each delivery. It contains the handler's run and the result of the delivery. Default:
	// otel.GetTracerProvider().
	TracerProvider trace.TracerProvider

	// Propagator reads the trace context from the message's metadata if the message's context has no span. That is so if the
	// subscriber does not trace, or if the event comes from the table of failed events. Default: otel.GetTextMapPropagator().
	Propagator propagation.TextMapPropagator

	// Logger gets duplicates and contention at debug level, failed attempts that the router does not see, and dead letters.
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
		c.Propagator = otel.GetTextMapPropagator() // delegates to the propagator that is set later
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports everything that is wrong with the configuration, for any store. The configuration must have its defaults set.
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
	if c.MaxStarts < -1 {
		errs = append(errs, fmt.Errorf("Config.MaxStarts is %d: want 1 or more, -1 for no guard, or 0 for the default", c.MaxStarts))
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
	postgres   *store.Postgres // store, or the PostgreSQL store that it wraps; if nil, no attempts are counted and no failed events are kept
	redelivery *redelivery.Redelivery
	modes      modes
	inHand     sync.Map // [2]string{consumer, event ID} of the events that single is handling
	counted    sync.Map // consumers whose handlers Handler has wrapped
	early      sync.Map // consumers for which it was logged that their messages are acked too early
	nested     sync.Map // consumers for which a nested claim was logged
	routed     sync.Map // [2]string{consumer, event ID} of the running events whose messages came through a router
	losses     fault.Losses
	breakers   sync.Map // consumer → *breaker
	slots      slots
}

// consumer returns the name of a handler's consumer in the store, "" if the consumer has no name.
func (c *Claim) consumer(handler string) string { return c.scoped(c.cfg.Consumer(handler)) }

func (c *Claim) scoped(name string) string {
	if name == "" {
		return ""
	}
	return service.Scoped(c.cfg.Service, name)
}

// New returns a Claim that keeps its claims in the given store.
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
	errs = append(errs, cfg.Validate(), cfg.validateModes(of))
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
