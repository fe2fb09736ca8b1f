package framework

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-go/millrace/internal/settings"
	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/transport"
)

// handler is one that was added by name.
type handler struct {
	name, topic string
	concurrency int // 0: not decided
	ordered     bool
	fn          message.NoPublishHandlerFunc
}

// Handle adds a handler: fn gets each event of the topic, decoded as T from JSON, or from protobuf if T is a proto.Message
// (a pointer, as in generated code). The context of fn carries the event (EventFrom) and the claim's transaction
// (pgtx.From). Config.Handlers has settings for the handler under its name. Call Handle before Run.
//
// The name is also the consumer's name: the group in Kafka, part of the subscription's name in Pub/Sub, and, behind the
// service's name, the scope of the claim. No other handler, in any service on the same broker, may have it. A handler with a new name is a new
// consumer, which has processed no event.
//
// An event whose payload cannot be decoded becomes a dead letter at once. With Kafka's transactional delivery its message
// is retried until it goes to the consumer's dead-letter topic, if there is one.
func Handle[T any](s *Service, name, topic string, fn func(ctx context.Context, event T) error) error {
	format, err := formatOf[T]()
	if err != nil {
		return fmt.Errorf("add handler %q: %w", name, err)
	}
	if fn == nil {
		return s.AddHandler(name, topic, nil)
	}
	return s.AddHandler(name, topic, func(msg *message.Message) error {
		event, target := format.target()
		if err := format.Unmarshal(msg, target); err != nil {
			return claim.Permanent(fmt.Errorf("decode the payload as %T: %w", *event, err))
		}
		return fn(msg.Context(), *event)
	})
}

// AddHandler adds a plain Watermill handler, which gets the whole message. It has the same middleware as those of Handle.
// To publish an event from it, call Publish with the message's context.
func (s *Service) AddHandler(name, topic string, fn message.NoPublishHandlerFunc) error {
	of := s.cfg.Handlers[name]
	h := &handler{name: name, topic: topic, fn: fn, concurrency: of.Concurrency, ordered: of.Ordered}
	subscriber := transport.SubscriberConfig{Consumer: s.consumer(name), Concurrency: h.concurrency, Ordered: h.ordered}
	if err := subscriber.Validate(); err != nil {
		return fmt.Errorf("add handler %q: %w", name, err)
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
		if other.name == name {
			return fmt.Errorf("add handler %q: there is one of that name, for topic %q: give each a name of its own", name, other.topic)
		}
	}
	s.handlers = append(s.handlers, h)
	return nil
}

// consumer is whom the broker and the claim know a handler as.
func (s *Service) consumer(handler string) string {
	if s.cfg.Claim.Consumer != nil {
		return s.cfg.Claim.Consumer(handler)
	}
	return handler
}

// addMiddleware adds what every message goes through, from the outside.
func (s *Service) addMiddleware() {
	s.router.AddMiddleware(wmiddleware.Recoverer, s.bind, s.guard)
}

// guard runs a handler under the claim, or in the unit of a transport that settles messages by itself, in transactions
// that a claim could not be part of.
func (s *Service) guard(h message.HandlerFunc) message.HandlerFunc {
	unit, unordered, ordered := middleware.Unit(h), s.claim.Middleware(h), message.HandlerFunc(nil)
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

// isOrdered is asked while the service runs, when no handler is added any more.
func (s *Service) isOrdered(name string) bool {
	for _, h := range s.handlers {
		if h.name == name {
			return h.ordered
		}
	}
	return false
}

// subscribe makes the subscriptions, so that nothing is missed that is published from now on, and hands the handlers to the
// router, which starts them with Run.
func (s *Service) subscribe() error {
	if err := allot(int(s.pool.Config().MaxConns), s.cfg.Outbox.Relay == Inside, s.cfg.Claim.Group, s.handlers); err != nil {
		return err
	}
	s.tellStrangers()
	var subscribing errgroup.Group
	for _, h := range s.handlers {
		sub, err := s.transport.Subscriber(transport.SubscriberConfig{Consumer: s.consumer(h.name), Concurrency: h.concurrency, Ordered: h.ordered})
		if err != nil {
			return errors.Join(fmt.Errorf("subscribe handler %q: %w", h.name, err), subscribing.Wait())
		}
		c, err := s.claimOf(h)
		if err != nil {
			return errors.Join(fmt.Errorf("claim of handler %q: %w", h.name, err), subscribing.Wait())
		}
		s.router.AddConsumerHandler(h.name, h.topic, c.Subscriber(s.consumer(h.name), sub, claim.Within(h.concurrency)), c.Handler(s.consumer(h.name), h.fn))
		if i, ok := sub.(message.SubscribeInitializer); ok {
			subscribing.Go(func() error {
				if err := i.SubscribeInitialize(h.topic); err != nil {
					return fmt.Errorf("subscribe handler %q to topic %q: %w", h.name, h.topic, err)
				}
				return nil
			})
		}
	}
	return subscribing.Wait()
}

// tellStrangers warns of handlers that are configured and not there: one of another process that has the same file, or a
// typo, which leaves the handler that was meant without its order.
func (s *Service) tellStrangers() {
	names := make([]string, len(s.handlers))
	for i, h := range s.handlers {
		names[i] = h.name
	}
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Handlers)) {
		if !slices.Contains(names, name) {
			s.log.Warn("the configuration is of a handler that is not there", "handler", name, "nearest", settings.Nearest(name, names))
		}
	}
}

// claimOf is the claim that a handler runs under: one that keeps the later events of a key behind a failed one, or not.
func (s *Service) claimOf(h *handler) (c *claim.Claim, err error) {
	if !h.ordered || s.cfg.Claim.Ordered {
		return s.claim, nil
	}
	if s.ordered == nil {
		s.ordered, err = s.newClaim(true)
	}
	return s.ordered, err
}
