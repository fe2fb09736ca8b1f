package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/backlog"
	"github.com/millrace-go/millrace/outbox/internal/store"
	"github.com/millrace-go/millrace/outbox/internal/writer"
	"github.com/millrace-go/millrace/transport"
)

// ErrNoTransaction is returned by Publish for a message whose context carries no transaction. Without a transaction the event
// could be lost, or be sent although the business change was rolled back.
var ErrNoTransaction = errors.New("no transaction in the message's context: publish inside " +
	"pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { … }) and build the message with " +
	"message.NewMessageWithContext(ctx, outbox.NewID(), payload), or put a transaction of your own there with pgtx.With or pgtx.WithSQL")

// ErrInvalidMessage is wrapped by Publish's error for a message that no relay could forward. The transaction is still
// usable. Publish writes none of the call's messages.
var ErrInvalidMessage = errors.New("invalid message")

// maxIDBytes is the longest event ID; each broker and index takes this length.
const maxIDBytes = 255

// PublisherConfig configures a Publisher. Its zero value is ready for use.
type PublisherConfig struct {
	// Schema of the outbox's tables. Default: "millrace".
	Schema string

	// Store says where Publish writes events. Rows inserts them into the outbox's table. Log writes them only into PostgreSQL's write-ahead
	// log (WAL), so the transaction leaves no rows and no dead rows; delayed events are still rows. A relay with the same Store creates a
	// replication slot that keeps them. Without the slot, Publish or pgtx.Run fails with ErrNoLog. Log needs wal_level = logical. Give all
	// publishers and relays of a schema the same Store: an event in the WAL and an event in a row are not ordered, even if they have the
	// same key. docs/guarantees.md lists the limits. Default: Rows.
	Store Store

	// Limits of the broker that the relay publishes to; transports export theirs. Publish refuses a message that exceeds them, while
	// the business transaction can still react. Default: transport.DefaultLimits.
	Limits transport.Limits

	// MaxBacklog is how many unpublished events the outbox may hold before Publish refuses more with ErrBacklog. Delayed and failed
	// events are not counted. Concurrent transactions may exceed the limit by their own events, and each further Publisher (one per
	// process) by a sixteenth of the limit. The publisher counts the outbox once a second, after each sixteenth of the limit, and when
	// there is no room; less often if counting is slow. The count is a statement in the transaction that publishes. Under serializable
	// isolation it may conflict with other writers. Must be 0 with Store Log, whose events cannot be counted. Default: 0, no limit.
	MaxBacklog int

	// Encode, if set, changes how events are stored, and so what relays publish. It gets a copy of the message and may set its payload,
	// metadata (with the trace context) and key. It is called concurrently, inside the transaction, and must do nothing else.
	// If it returns an error, Publish refuses the event (ErrInvalidMessage). Default: nil.
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
		c.Propagator = otel.GetTextMapPropagator() // delegates to the propagator that is set later
	}
	return c
}

// ErrBacklog is wrapped by Publish's error when the outbox holds PublisherConfig.MaxBacklog unpublished events, or more. The
// transaction is still usable. Refuse the request that led to the event, or try it again later.
var ErrBacklog = errors.New("too many unpublished events in the outbox")

// ErrNoLog is wrapped by Publish's error, or by that of pgtx.Run, when PublisherConfig.Store is Log and no replication slot keeps the outbox's WAL. The
// transaction cannot commit, so no event is written that nobody would read. Start a relay with RelayConfig.Store Log, and try again.
var ErrNoLog = writer.ErrNoLog

// Publisher writes events in the transaction that the message's context carries. It implements message.Publisher. It is
// safe for concurrent use, but messages of one transaction are only as safe as that transaction is.
type Publisher struct {
	writer     writer.Writer
	limits     transport.Limits
	topic      atomic.Pointer[string] // the last topic that the limits allowed
	backlog    *backlog.Backlog
	maxBacklog int
	encode     func(topic string, msg *message.Message) error
	propagator propagation.TextMapPropagator
}

// NewPublisher returns a publisher. It uses the connections of its callers' transactions.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) {
	var errs []error
	schema, err := pgschema.Validate(cfg.Schema)
	if err != nil {
		errs = append(errs, fmt.Errorf("PublisherConfig.%w", err))
	}
	if cfg.MaxBacklog < 0 {
		errs = append(errs, fmt.Errorf("PublisherConfig.MaxBacklog is %d: want 1 or more, or 0 for no limit", cfg.MaxBacklog))
	}
	switch {
	case cfg.Store != Rows && cfg.Store != Log:
		errs = append(errs, fmt.Errorf("PublisherConfig.Store is %v: want Rows or Log", cfg.Store))
	case cfg.Store == Log && cfg.MaxBacklog > 0:
		errs = append(errs, fmt.Errorf("PublisherConfig.MaxBacklog is %d: want 0 where Store is Log, because nobody can count the events that are only in the WAL", cfg.MaxBacklog))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("outbox publisher: %w", err)
	}
	cfg = cfg.withDefaults()
	return &Publisher{
		writer: writer.New(schema, cfg.Store == Log), limits: cfg.Limits, backlog: backlog.New(schema, cfg.MaxBacklog), maxBacklog: cfg.MaxBacklog, encode: cfg.Encode, propagator: cfg.Propagator,
	}, nil
}

// Publish adds the messages to the transaction that their contexts carry; all must carry the same one. After the commit the relay
// forwards them in order. The caller may change the messages after Publish has returned.
//
// In a transaction of pgtx.Run, Publish keeps the events until COMMIT, and one statement inserts them in COMMIT's round trip. So
// publishing costs no round trip, statements of the transaction do not see the events, and database errors of the insert (for
// example, a missing table) are returned by Run. A nested Run that is rolled back discards its events.
// The commit wakes the relays of this process.
//
// In a transaction of the caller's own (pgtx.With, pgtx.WithSQL), and in one that sets its savepoints by hand, each call
// executes one statement immediately. A database error leaves the transaction failed. Millrace does not see the commit of a transaction
// of the caller's own: call Relay.Nudge after it, or let the relay's poll find the events.
//
// If Publish refuses a message (ErrInvalidMessage, ErrNoTransaction, ErrBacklog), the transaction stays usable and none of the
// call's messages is written. A call without messages does nothing.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	events, o, err := p.events(topic, msgs)
	if err == nil {
		err = p.writer.Hint(p.admit(msgs[0].Context(), o, undelayed(events)))
	}
	if err == nil {
		err = p.writer.Write(msgs[0].Context(), o, events)
	}
	if err != nil {
		return fmt.Errorf("publish to the outbox: %w", err)
	}
	return nil
}

// Close does nothing: transactions belong to their callers.
func (p *Publisher) Close() error { return nil }

// admit returns an error if there is no room for n events.
func (p *Publisher) admit(ctx context.Context, o writer.Owner, n int64) error {
	found, err := p.backlog.Admit(ctx, o.Count, n, time.Now())
	if err == nil && found > 0 {
		err = fmt.Errorf("%w: about %d, PublisherConfig.MaxBacklog is %d: see that a relay runs and that the broker takes its messages, "+
			"then try again", ErrBacklog, found, p.maxBacklog)
	}
	return err
}

// maxErrors is how many invalid messages of one call Publish's error names.
const maxErrors = 10

// events checks all messages. It returns the events to store and the transaction that the messages share.
func (p *Publisher) events(topic string, msgs []*message.Message) ([]writer.Event, writer.Owner, error) {
	var (
		first  writer.Owner
		errs   []error
		events = make([]writer.Event, 0, len(msgs))
	)
	for i, m := range msgs {
		if len(errs) == maxErrors {
			break
		}
		if m == nil {
			return nil, first, fmt.Errorf("message %d of %d is nil", i+1, len(msgs))
		}
		o, ok := writer.OwnerOf(m.Context())
		switch {
		case transport.UnitFrom(m.Context()) != nil: // refused even with a transaction, which would commit without the unit
			return nil, first, fmt.Errorf("message %d of %d (ID %q): %w: %q, as the consumed message is delivered transactionally: publish by its transport, or give the message a context without the unit (transport.WithUnit(ctx, nil)) if the event may be published more than once",
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

// event returns the event to store for the message, or an error if no relay could forward it.
func (p *Publisher) event(topic string, m *message.Message) (writer.Event, error) {
	delay, err := delayOf(m)
	out := &message.Message{UUID: m.UUID, Metadata: p.metadata(m, delay > 0), Payload: m.Payload}
	if p.encode != nil {
		err = errors.Join(err, p.encode(topic, out))
	}
	refused := p.check(topic, out)
	if refused != nil && CauseFrom(m.Context()) != "" { // the cause must not push the message over the limits
		delete(out.Metadata, CauseMetadata)
		refused = p.check(topic, out)
	}
	if err := errors.Join(err, refused); err != nil {
		return writer.Event{}, err
	}
	return newEvent(topic, out, delay)
}

// newEvent returns the event as it is stored.
func newEvent(topic string, m *message.Message, delay int64) (writer.Event, error) {
	metadata, key := m.Metadata, transport.Key(m)
	delete(metadata, transport.KeyMetadata) // the key has its own column
	if delay > 0 {
		delete(metadata, DueMetadata) // added when the event is due
	}
	headers := []byte("{}")
	if len(metadata) > 0 {
		var err error
		if headers, err = json.Marshal(metadata); err != nil {
			return writer.Event{}, err
		}
	}
	e := writer.Event{Hash: store.Hash(key, m.UUID), ID: m.UUID, Topic: topic, Key: key, Headers: headers, Payload: m.Payload, Delay: delay}
	if e.Payload == nil {
		e.Payload = []byte{} // nil would be NULL in SQL
	}
	return e, nil
}

// undelayed counts the events that enter the outbox without a delay.
func undelayed(events []writer.Event) (n int64) {
	for _, e := range events {
		if e.Delay == 0 {
			n++
		}
	}
	return n
}

// metadata returns a copy of the message's metadata as it will be stored.
func (p *Publisher) metadata(m *message.Message, delayed bool) message.Metadata {
	md := make(message.Metadata, len(m.Metadata)+3)
	maps.Copy(md, m.Metadata)
	delete(md, deliverAfter)
	if cause := CauseFrom(m.Context()); cause != "" && len(cause) <= maxIDBytes {
		md[CauseMetadata] = cause
	}
	if delayed {
		md[DueMetadata] = dueLayout // a placeholder that counts for the limits; the relay sets the real time
	}
	if _, ok := md["traceparent"]; !ok {
		p.propagator.Inject(m.Context(), missing(md))
	}
	return md
}

// missing is a carrier that sets only entries that do not exist yet.
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
	if last := p.topic.Load(); last != nil && *last == topic { // the topic's pattern costs more than all other checks
		limits.Topic = nil
	} else if topic == "" || !utf8.ValidString(topic) || strings.ContainsRune(topic, 0) { // checked whatever the limits are
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
