package brokermigration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/transport"
)

// Config configures a Transport.
type Config struct {
	// Service is the name of the service whose claims handle what this transport delivers. A claim of another service in the same
	// process counts as one that takes no part in the migration. Default: "", for claims of any service.
	Service string
	// Schema of the outbox's tables. Default: "millrace".
	Schema string
	// Logger gets the steps, and what keeps the process from learning of them. Default: slog.Default().
	Logger *slog.Logger
}

// Transport is two brokers: the one that a fleet leaves, and the one that it goes to. Its subscribers read both. Its publisher obeys
// the record in the database, and refuses everything with transport.ErrUnavailable while no broker may be published to, so that
// events stay in the outbox. It is safe for concurrent use.
type Transport struct {
	from, to *side
	process  *process
	closing  sync.Once
	closed   error
}

var _ interface {
	transport.Transport
	transport.Pinger
} = (*Transport)(nil)

// WithoutPush says what to do about consumers with push. A migration refuses them because it takes a consumer that gets nothing, from a
// broker that answers, for one that has read everything; and that a broker answers does not say that its requests arrive.
const WithoutPush = "remove pubsub.subscription.push and pubsub.consumers.NAME.push, and they pull; " +
	"pubsub.resources: update changes existing subscriptions when the services start"

// side is one of the two brokers.
type side struct {
	transport.Transport
	publisher transport.BatchPublisher
	traffic
}

// New returns a transport of both brokers, which it closes with itself. It registers the process in the database, over a connection of
// its own beside the pool, and reads there where to publish. It returns an error, and closes nothing, where the record in
// the database is of another migration, and where a broker's transactions would have to span both.
//
// Consumers need a claim: while the publishing changes, an event may be in both brokers.
func New(ctx context.Context, pool *pgxpool.Pool, from, to transport.Transport, cfg Config) (*Transport, error) {
	schema, err := pgschema.Validate(cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("broker migration: Config.%w", err)
	}
	t := &Transport{}
	var wrong []error
	if from.Name() == to.Name() {
		wrong = append(wrong, fmt.Errorf("both brokers are %s: want two", from.Name()))
	}
	for _, s := range []struct {
		broker transport.Transport
		side   **side
	}{{from, &t.from}, {to, &t.to}} {
		p, err := s.broker.Publisher()
		batches, ok := p.(transport.BatchPublisher)
		if err == nil && !ok {
			err = fmt.Errorf("broker %s delivers transactionally, and its transactions cannot span two brokers: set %s.delivery: at_least_once for the migration", s.broker.Name(), s.broker.Name())
		}
		wrong = append(wrong, err)
		if pushing, ok := s.broker.(transport.PushServer); ok && len(pushing.PushPaths()) > 0 {
			wrong = append(wrong, fmt.Errorf("broker %s has consumers with push, which do not work in a migration: %s", s.broker.Name(), WithoutPush))
		}
		*s.side = &side{Transport: s.broker, publisher: batches}
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, fmt.Errorf("broker migration: %w", err)
	}
	t.process, err = register(ctx, pool, schema, cfg.Service, cmp.Or(cfg.Logger, slog.Default()), t.from, t.to)
	if err != nil {
		return nil, fmt.Errorf("broker migration: %w", err)
	}
	return t, nil
}

// Name implements transport.Transport: both names.
func (t *Transport) Name() string { return t.from.Name() + "+" + t.to.Name() }

// Publisher implements transport.Transport. The publisher implements transport.BatchPublisher.
func (t *Transport) Publisher() (message.Publisher, error) { return publisher{t}, nil }

// Subscriber implements transport.Transport. What it delivers is in flight up to cfg.Concurrency times for each of the brokers.
func (t *Transport) Subscriber(cfg transport.SubscriberConfig) (message.Subscriber, error) {
	from, err := t.from.Subscriber(cfg)
	if err != nil {
		return nil, err
	}
	to, err := t.to.Subscriber(cfg)
	if err != nil {
		return nil, errors.Join(err, from.Close())
	}
	return &subscriber{transport: t, group: cfg.Consumer, from: from, to: to, stop: make(chan struct{})}, nil
}

// Features implements transport.Transport: what both brokers can do, and carry.
func (t *Transport) Features() transport.Features {
	a, b := t.from.Features(), t.to.Features()
	return transport.Features{
		Ordered: a.Ordered && b.Ordered, Attempts: a.Attempts && b.Attempts,
		DelayedRedelivery: a.DelayedRedelivery && b.DelayedRedelivery, Persistent: a.Persistent && b.Persistent,
		Limits: Limits(a.Limits, b.Limits),
	}
}

// Limits is what both brokers carry.
func Limits(a, b transport.Limits) transport.Limits {
	least := func(a, b int) int {
		if a == 0 || b == 0 {
			return max(a, b)
		}
		return min(a, b)
	}
	l := transport.Limits{
		Topic: cmp.Or(a.Topic, b.Topic), MessageBytes: least(a.MessageBytes, b.MessageBytes), KeyBytes: least(a.KeyBytes, b.KeyBytes),
		MetadataEntries: least(a.MetadataEntries, b.MetadataEntries), MetadataKeyBytes: least(a.MetadataKeyBytes, b.MetadataKeyBytes),
		MetadataValueBytes: least(a.MetadataValueBytes, b.MetadataValueBytes),
	}
	if a.Topic != nil && b.Topic != nil && a.Topic != b.Topic {
		l.Topic = transport.DefaultLimits.Topic // names that either takes
	}
	return l
}

// Ping implements transport.Pinger: both brokers answer.
func (t *Transport) Ping(ctx context.Context) error {
	return errors.Join(t.from.ping(ctx), t.to.ping(ctx))
}

func (s *side) ping(ctx context.Context) error {
	if p, ok := s.Transport.(transport.Pinger); ok {
		return p.Ping(ctx)
	}
	return nil
}

// Close implements transport.Transport. The process is registered until both brokers have what was published.
func (t *Transport) Close() error {
	t.closing.Do(func() {
		var to error
		var both sync.WaitGroup
		both.Go(func() { to = t.to.Close() })
		t.closed = t.from.Close()
		both.Wait()
		t.process.end()
		t.closed = errors.Join(t.closed, to)
	})
	return t.closed
}
