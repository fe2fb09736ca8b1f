package framework

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/catalog"
	"github.com/millrace-go/millrace/console"
	"github.com/millrace-go/millrace/framework/internal/budget"
	"github.com/millrace-go/millrace/internal/settings"
	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/transport"
)

// handler is a handler that was added by name.
type handler struct {
	budget.Handler
	topic   string
	ordered bool
	fn      message.NoPublishHandlerFunc
	known   []catalog.Event // the types and versions that it handles
}

// Handle adds a handler: fn gets each event of the topic, as a value of the topic's type. The context of fn carries the event
// (EventFrom) and the claim's transaction (pgtx.From). Config.Handlers has settings for the handler under its name. Call
// Handle before Run.
//
// The service's name and the handler's are the consumer's name: the scope of the claim and, with a dot between them, the group
// in Kafka and a part of the subscription's name in Pub/Sub (Handler.Group). A handler with a new name is a new consumer, which
// has processed no event.
//
// An event of an older version goes through the topic's upcasts. Handler.UnknownVersions says what becomes of an event whose
// type or version the topic does not know.
//
// CloudEvents are read in both modes: see CloudEvents.
//
// An event whose payload cannot be decoded becomes a dead letter at once: under a claim in the claim's table, with Kafka's
// transactional delivery in the consumer's dead-letter topic, or in transport.DeadLetterTopic where it has none.
func Handle[T any](s *Service, name string, topic *TopicOf[T], fn func(ctx context.Context, event T) error) error {
	if topic.err != nil {
		return fmt.Errorf("add handler %q: %w", name, topic.err)
	}
	if fn == nil {
		return s.addHandler(name, topic.name, nil, nil)
	}
	return s.addHandler(name, topic.name, topic.events.Catalog(), func(msg *message.Message) error {
		event, err := topic.decode(msg)
		if err != nil {
			return s.refused(name, msg, err)
		}
		return fn(msg.Context(), event)
	})
}

// AddHandler adds a plain Watermill handler, which gets the whole message. It has the same middleware as handlers that Handle
// adds. On Kafka a topic that begins with ^ is a regular expression, and EventFrom returns the topic of each event; see package
// kafka. To publish an event from the handler, call a topic's Publish with the message's context. If the message is a CloudEvent,
// its payload is the event's data, and its metadata entries ce_NAME are the attributes.
func (s *Service) AddHandler(name, topic string, fn message.NoPublishHandlerFunc) error {
	return s.addHandler(name, topic, []catalog.Event{{}}, fn)
}

func (s *Service) addHandler(name, topic string, known []catalog.Event, fn message.NoPublishHandlerFunc) error {
	of := s.cfg.Handlers[name]
	h := &handler{Handler: budget.Handler{Name: name, Concurrency: of.Concurrency}, topic: topic, fn: s.unpacking(fn), known: known, ordered: of.Ordered}
	if err := transport.ValidateHandler(s.cfg.consumer(name)); err != nil {
		return fmt.Errorf("add handler %q: its name is wrong: %w", name, err)
	}
	if fn == nil {
		return fmt.Errorf("add handler %q: the function is nil: want one that handles events", name)
	}
	if topic == "" {
		return fmt.Errorf("add handler %q: the topic is empty: want the name of one", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stage != made {
		return fmt.Errorf("add handler %q: the service runs already, or has ended: add handlers before Run", name)
	}
	for _, other := range s.handlers {
		if other.Name == name {
			return fmt.Errorf("add handler %q: there is one of that name, for topic %q: give each a name of its own", name, other.topic)
		}
		if group := s.cfg.group(name); s.cfg.group(other.Name) == group {
			return fmt.Errorf("add handler %q: handler %q has its group, %q, so that each would get a part of the events: give each a group of its own", name, other.Name, group)
		}
	}
	s.handlers = append(s.handlers, h)
	return nil
}

// addMiddleware adds the middleware that every message passes, the outermost one first.
func (s *Service) addMiddleware() {
	s.router.AddMiddleware(wmiddleware.Recoverer, s.bind, s.guard)
}

// guard runs a handler under the claim. If the transport settles messages in units of its own, guard runs it in the message's
// unit, because a claim cannot be part of such a transaction.
func (s *Service) guard(h message.HandlerFunc) message.HandlerFunc {
	unit, unordered, ordered := s.attempt(wmiddleware.Recoverer(middleware.Unit(h))), s.claim.Middleware(h), message.HandlerFunc(nil)
	if s.ordered != nil {
		ordered = s.ordered.Middleware(h)
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		switch {
		case transport.UnitFrom(msg.Context()) != nil:
			return unit(msg)
		case ordered != nil && s.isOrdered(message.HandlerNameFromCtx(msg.Context())):
			return ordered(msg)
		}
		return unordered(msg)
	}
}

// attempt rejects a message of a unit, which makes it a dead letter, if no retry can help: at once if the error is Permanent, and
// in a service without a database after Claim.MaxAttempts failures, which the transport counts. With a database it does not count
// failures, because an outage of the database may have caused them.
func (s *Service) attempt(h message.HandlerFunc) message.HandlerFunc {
	most := s.cfg.Claim.WithDefaults().MaxAttempts
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context() // taken before h runs: Watermill's Timeout leaves an ended context in msg
		produced, err := h(msg)
		delivery := transport.DeliveryFrom(ctx)
		failures := transport.Failures(delivery) + 1
		var later interface{ RetryAfter() time.Duration }
		switch {
		case err == nil:
		case claim.IsPermanent(err):
			delivery.Reject(err)
		case errors.As(err, &later):
			delivery.RetryAfter(max(later.RetryAfter(), time.Second))
		case errors.Is(err, ErrNoPostgres): // the event did nothing wrong
			delivery.RetryAfter(time.Minute)
		case s.bare && failures >= most && ctx.Err() == nil:
			delivery.Reject(fmt.Errorf("its handler has failed %d times, the last time with: %w", failures, err))
		}
		return produced, err
	}
}

// isOrdered reads the handlers without a lock: it is called only while the service runs, when no more are added.
func (s *Service) isOrdered(name string) bool {
	for _, h := range s.handlers {
		if h.Name == name {
			return h.ordered
		}
	}
	return false
}

// subscriptions are those of the handlers, by the names on the broker.
func (s *Service) subscriptions() (all []console.Subscription) {
	for _, h := range s.handlers {
		all = append(all, console.Subscription{Consumer: s.cfg.group(h.Name), Topic: h.topic})
	}
	return all
}

// subscribe makes the subscriptions, so that handlers miss no event that is published from now on. It adds the handlers to the
// router, which starts them in Run.
func (s *Service) subscribe() error {
	handlers, sharing := make([]string, len(s.handlers)), make([]*budget.Handler, len(s.handlers))
	for i, h := range s.handlers {
		handlers[i], sharing[i] = h.Name, &h.Handler
	}
	if !s.cfg.units() { // else the transport has a default
		if err := budget.Allot(int(s.pool.Config().MaxConns), s.cfg.Outbox.Relay == Inside, s.cfg.Claim.Group, sharing); err != nil {
			return err
		}
	}
	for _, name := range settings.Absent(s.cfg.Handlers, handlers) {
		s.log.Warn("the configuration is of a handler that is not there", "handler", name, "nearest", settings.Nearest(name, handlers))
	}
	var subscribing errgroup.Group
	for _, h := range s.handlers {
		sub, err := s.transport.Subscriber(transport.SubscriberConfig{Consumer: s.cfg.group(h.Name), Concurrency: h.Concurrency, Ordered: h.ordered})
		if err != nil {
			return errors.Join(fmt.Errorf("subscribe handler %q: %w", h.Name, err), subscribing.Wait())
		}
		if err := s.addToRouter(h, sub); err != nil {
			return errors.Join(err, subscribing.Wait())
		}
		if i, ok := sub.(message.SubscribeInitializer); ok {
			subscribing.Go(func() error {
				if err := i.SubscribeInitialize(h.topic); err != nil {
					return fmt.Errorf("subscribe handler %q to topic %q: %w", h.Name, h.topic, err)
				}
				return nil
			})
		}
	}
	return subscribing.Wait()
}

// addToRouter adds a handler to the router. With a database its subscriber also delivers the events that the claim retries from
// its table.
func (s *Service) addToRouter(h *handler, sub message.Subscriber) error {
	if s.bare {
		s.router.AddConsumerHandler(h.Name, h.topic, sub, h.fn)
		return nil
	}
	c, err := s.claimOf(h)
	if err != nil {
		return fmt.Errorf("claim of handler %q: %w", h.Name, err)
	}
	s.router.AddConsumerHandler(h.Name, h.topic, c.Subscriber(s.cfg.consumer(h.Name), sub, claim.Within(h.Concurrency)), c.Handler(s.cfg.consumer(h.Name), h.fn))
	return nil
}

// Attach adds the handlers to Router with subscribers of the caller, in place of the transport's. It is for tests that deliver
// messages themselves, such as those of package millracetest. The service's middleware is around each handler. Run Router instead
// of the service, and close both in the end. A message whose handler fails is nacked: Attach does not keep it for a retry.
func (s *Service) Attach(subscriber func(handler string) message.Subscriber) error {
	if !s.enter(ended) { // then Run is refused, and Close closes the service
		return ErrEnded
	}
	for _, h := range s.handlers {
		c, err := s.claimOf(h)
		if err != nil {
			return fmt.Errorf("claim of handler %q: %w", h.Name, err)
		}
		s.router.AddConsumerHandler(h.Name, h.topic, subscriber(h.Name), c.Handler(s.cfg.consumer(h.Name), h.fn))
	}
	return nil
}

// claimOf returns the claim for a handler: the ordered one, in which a failed event blocks the later events of its key, or the
// other.
func (s *Service) claimOf(h *handler) (c *claim.Claim, err error) {
	if !h.ordered {
		return s.claim, nil
	}
	if s.ordered == nil {
		s.ordered, err = s.newClaim(true)
	}
	return s.ordered, err
}
