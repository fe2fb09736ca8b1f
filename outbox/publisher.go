package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// ErrNoTransaction is returned by Publish for a message whose context carries no transaction. An event published
// without one would be lost, or sent although the business change was rolled back.
var ErrNoTransaction = errors.New("no transaction in the message's context: publish inside " +
	"pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { … }) and build the message with " +
	"message.NewMessageWithContext(ctx, outbox.NewID(), payload), or put a transaction of your own there with pgtx.With or pgtx.WithSQL")

// ErrInvalidMessage is wrapped by Publish's error for a message that no relay could forward. The transaction is still
// usable; nothing of the call will be written.
var ErrInvalidMessage = errors.New("invalid message")

// maxIDBytes keeps an event ID shorter than what every broker and index takes.
const maxIDBytes = 255

// PublisherConfig configures a Publisher. Its zero value is ready for use.
type PublisherConfig struct {
	// Schema of the outbox's tables. Default: "millrace".
	Schema string

	// Limits of the broker that the relay publishes to; transports export theirs. A message beyond them is refused,
	// where the business transaction can still react. Default: transport.DefaultLimits.
	Limits transport.Limits

	// MaxBacklog is how many unpublished events the outbox may hold, in all, before Publish refuses more with ErrBacklog.
	// It is passed by the events of transactions that are open at the same time, and by a sixteenth of it for each further
	// Publisher (one per process): a publisher looks after a sixteenth, when there is no more room, and once a second, less
	// often where a look takes long. A look is a statement of its own in the transaction that publishes. Under serializable
	// isolation it may conflict with other writers. Delayed and failed events are not counted. Default: 0, no limit.
	MaxBacklog int

	// Encode, if set, changes what is stored of each event, and so what relays publish: the message is a copy, whose payload,
	// metadata (with the trace context) and key it may set. It is called concurrently, in the transaction, and must do nothing else.
	// An error refuses the event (ErrInvalidMessage). Default: nil.
	Encode func(topic string, msg *message.Message) error

	// Propagator writes the trace context of the message's context into the stored metadata, unless that has an entry
	// "traceparent". Default: otel.GetTextMapPropagator().
	Propagator propagation.TextMapPropagator
}

func (c PublisherConfig) withDefaults() PublisherConfig {
	if c.Limits.IsZero() {
		c.Limits = transport.DefaultLimits
	}
	if c.Propagator == nil {
		c.Propagator = otel.GetTextMapPropagator() // passes on to whatever is set later
	}
	return c
}

// Publisher writes events in the transaction that the message's context carries. It implements message.Publisher and is
// safe for concurrent use, as far as the transactions are.
type Publisher struct {
	inserter   inserter
	limits     transport.Limits
	topic      atomic.Pointer[string] // the last one that the limits allowed
	backlog    *backlog
	encode     func(topic string, msg *message.Message) error
	propagator propagation.TextMapPropagator
}

// NewPublisher returns a publisher. It needs no connection of its own.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	var errs []error
	schema, err := pgschema.Validate(cfg.Schema)
	if err != nil {
		errs = append(errs, fmt.Errorf("PublisherConfig.%w", err))
	}
	if cfg.MaxBacklog < 0 {
		errs = append(errs, fmt.Errorf("PublisherConfig.MaxBacklog is %d: want 1 or more, or 0 for no limit", cfg.MaxBacklog))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("outbox publisher: %w", err)
	}
	cfg = cfg.withDefaults()
	return &Publisher{
		inserter: newInserter(schema), limits: cfg.Limits, backlog: newBacklog(schema, cfg.MaxBacklog), encode: cfg.Encode, propagator: cfg.Propagator,
	}, nil
}

// Publish adds the messages to the transaction that the context of all of them carries. The relay forwards them, in
// order, once it has been committed. The messages are the caller's again when Publish returns.
//
// In a transaction of pgtx.Run the events are kept until its COMMIT, which inserts all of them with one statement in
// its own round trip: publishing costs none, statements of the transaction do not see the events, and what the database
// has against them (tables that are missing) is an error of Run. A nested Run that rolls back takes its events along.
// Relays of this process are woken right after the commit.
//
// In a transaction of the caller's own (pgtx.With, pgtx.WithSQL), and in one that makes its savepoints by hand, each call
// is one statement, executed at once; an error of the database leaves the transaction failed. Nobody sees the commit:
// call Relay.Nudge after it, or let the relay's poll find the events.
//
// A message that is refused (ErrInvalidMessage, ErrNoTransaction, ErrBacklog) leaves the transaction usable, and nothing of the call
// is written. Zero messages are no statement.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	events, o, err := p.events(topic, msgs)
	if err == nil {
		err = p.inserter.hint(p.backlog.admit(msgs[0].Context(), o, undelayed(events), time.Now()))
	}
	if err == nil {
		err = p.inserter.write(msgs[0].Context(), o, events)
	}
	if err != nil {
		return fmt.Errorf("publish to the outbox: %w", err)
	}
	return nil
}

// Close does nothing: the transactions are their owners'.
func (p *Publisher) Close() error { return nil }

// owner is the transaction of a message.
type owner struct {
	pgx pgx.Tx
	sql *sql.Tx
}

func ownerOf(ctx context.Context) (o owner, ok bool) {
	if o.pgx, ok = pgtx.From(ctx); !ok {
		o.sql, ok = pgtx.SQLFrom(ctx)
	}
	return o, ok
}

// maxErrors is how many invalid messages of one Publish an error names.
const maxErrors = 10

// events checks all messages and returns what will be stored of them, and the transaction that they share.
func (p *Publisher) events(topic string, msgs []*message.Message) ([]stored, owner, error) {
	var (
		first  owner
		errs   []error
		events = make([]stored, 0, len(msgs))
	)
	for i, m := range msgs {
		if len(errs) == maxErrors {
			break
		}
		if m == nil {
			return nil, first, fmt.Errorf("message %d of %d is nil", i+1, len(msgs))
		}
		o, ok := ownerOf(m.Context())
		switch {
		case transport.UnitFrom(m.Context()) != nil: // not even with a transaction: it would commit without the unit
			return nil, first, fmt.Errorf("message %d of %d (ID %q): %w: %q, as the consumed message is delivered transactionally: publish by its transport, or give the message a context without the unit (transport.WithUnit(ctx, nil)) for an event that may come again",
				i+1, len(msgs), m.UUID, transport.ErrForeignUnit, transport.UnitFrom(m.Context()).Domain())
		case !ok:
			return nil, first, fmt.Errorf("message %d of %d (ID %q): %w", i+1, len(msgs), m.UUID, ErrNoTransaction)
		case i > 0 && o != first:
			return nil, first, fmt.Errorf("message %d of %d (ID %q) carries another transaction than the first: publish them in calls of their own", i+1, len(msgs), m.UUID)
		}
		first = o
		e, err := p.event(topic, m)
		if err != nil {
			errs = append(errs, fmt.Errorf("message %d of %d (ID %.40q): %w: %w", i+1, len(msgs), m.UUID, ErrInvalidMessage, err))
			continue
		}
		events = append(events, e)
	}
	return events, first, errors.Join(errs...)
}

// event is what will be stored of the message, if any relay can forward that.
func (p *Publisher) event(topic string, m *message.Message) (stored, error) {
	delay, err := delayOf(m)
	out := &message.Message{UUID: m.UUID, Metadata: p.metadata(m, delay > 0), Payload: m.Payload}
	if p.encode != nil {
		err = errors.Join(err, p.encode(topic, out))
	}
	refused := p.check(topic, out)
	if refused != nil && CauseFrom(m.Context()) != "" { // ours must not be the entry too many
		delete(out.Metadata, CauseMetadata)
		refused = p.check(topic, out)
	}
	if err := errors.Join(err, refused); err != nil {
		return stored{}, err
	}
	return newStored(topic, out, delay)
}

// metadata is what will travel with the event, in a copy.
func (p *Publisher) metadata(m *message.Message, delayed bool) message.Metadata {
	md := make(message.Metadata, len(m.Metadata)+3)
	maps.Copy(md, m.Metadata)
	delete(md, deliverAfter)
	if cause := CauseFrom(m.Context()); cause != "" && len(cause) <= maxIDBytes {
		md[CauseMetadata] = cause
	}
	if delayed {
		md[DueMetadata] = dueLayout // the relay will know; it counts for the limits
	}
	if _, ok := md["traceparent"]; !ok {
		p.propagator.Inject(m.Context(), missing(md))
	}
	return md
}

// missing is a carrier that sets only what is not there.
type missing message.Metadata

func (c missing) Get(key string) string { return c[key] }
func (c missing) Keys() []string        { return slices.Collect(maps.Keys(c)) }
func (c missing) Set(key, value string) {
	if _, ok := c[key]; !ok {
		c[key] = value
	}
}

func (p *Publisher) check(topic string, m *message.Message) error {
	var errs []error
	limits := p.limits
	if last := p.topic.Load(); last != nil && *last == topic { // its pattern costs more than all the rest
		limits.Topic = nil
	} else if topic == "" || !utf8.ValidString(topic) || strings.ContainsRune(topic, 0) { // whatever the limits say
		errs = append(errs, fmt.Errorf("topic %q is empty or not UTF-8 without NUL bytes", topic))
	}
	switch {
	case m.UUID == "":
		errs = append(errs, errors.New("the message has no ID: build it with message.NewMessage(outbox.NewID(), payload)"))
	case len(m.UUID) > maxIDBytes:
		errs = append(errs, fmt.Errorf("the ID is %d bytes long, the limit is %d", len(m.UUID), maxIDBytes))
	}
	err := errors.Join(append(errs, transport.CheckText(m), limits.Check(topic, m))...)
	if err == nil && limits.Topic != nil {
		p.topic.Store(&topic)
	}
	return err
}
