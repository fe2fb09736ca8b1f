package claim_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

// beside is what becomes of events whose first attempt fails, with middleware of Watermill's outside or inside of the claim.
// The texts are those of the table in docs/how-to/from-watermill.md.
type beside struct {
	text string
	dead bool   // they are dead letters, not handled
	log  string // what is logged of it
}

const allHandled = "every event is handled"

var watermills = []struct {
	name            string
	make            func(f *fixture) message.HandlerMiddleware
	panics          bool
	outside, inside beside
}{
	{
		name: "Recoverer", panics: true, make: func(*fixture) message.HandlerMiddleware { return wmiddleware.Recoverer },
		outside: beside{text: allHandled}, inside: beside{text: allHandled},
	},
	{
		name: "Timeout", make: func(*fixture) message.HandlerMiddleware { return wmiddleware.Timeout(time.Minute) },
		outside: beside{text: allHandled + "; the timeout does not reach the handler: use `HandlerTimeout`"}, inside: beside{text: allHandled},
	},
	{
		name: "Throttle", make: func(*fixture) message.HandlerMiddleware {
			return wmiddleware.NewThrottle(10000, time.Second).Middleware
		},
		outside: beside{text: allHandled}, inside: beside{text: allHandled + "; a message that waits holds a connection"},
	},
	{
		name: "CorrelationID", make: func(*fixture) message.HandlerMiddleware { return wmiddleware.CorrelationID },
		outside: beside{text: allHandled + "; returned messages get no correlation ID"}, inside: beside{text: allHandled},
	},
	{
		name: "DelayOnError", make: func(*fixture) message.HandlerMiddleware {
			return (&wmiddleware.DelayOnError{InitialInterval: time.Second, MaxInterval: time.Second, Multiplier: 1}).Middleware
		},
		outside: beside{text: allHandled + "; it has no effect: the claim returns no error"}, inside: beside{text: allHandled + "; the delay is `Config.Backoff`'s"},
	},
	{
		name: "IgnoreErrors", make: func(*fixture) message.HandlerMiddleware {
			return wmiddleware.NewIgnoreErrors([]error{errOops}).Middleware
		},
		outside: beside{text: allHandled + "; it has no effect: the claim returns no error"},
		inside:  beside{text: "an event whose error is ignored counts as processed, with what its handler wrote"},
	},
	{
		name: "Retry", make: func(*fixture) message.HandlerMiddleware {
			return wmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}.Middleware
		},
		outside: beside{text: allHandled + "; it has no effect: the claim returns no error"},
		inside:  beside{text: allHandled + ", but each retry fails with `ErrCalledAgain`; together they count as one attempt", log: "called the handler again"},
	},
	{
		name: "PoisonQueue", make: func(f *fixture) message.HandlerMiddleware {
			m, err := wmiddleware.PoisonQueue(discarding{}, "poison")
			require.NoError(f.t, err)
			return m
		},
		outside: beside{text: allHandled + "; it has no effect: dead letters are in the table"},
		inside:  beside{text: allHandled + ", but each failure is `ErrNotHandled`, and leaves a copy in the poison queue", log: "remove PoisonQueue"},
	},
	{
		name: "CircuitBreaker", make: func(*fixture) message.HandlerMiddleware {
			return wmiddleware.NewCircuitBreaker(gobreaker.Settings{Timeout: time.Millisecond, ReadyToTrip: func(gobreaker.Counts) bool { return true }}).Middleware
		},
		outside: beside{text: allHandled + "; it never opens: the claim returns no error"}, inside: beside{text: allHandled + "; while it is open no attempt is counted"},
	},
	{
		name: "Deduplicator", make: func(f *fixture) message.HandlerMiddleware { return f.deduplicator() },
		outside: beside{text: "an event that failed waits until the Deduplicator has forgotten it, and an error is logged; other events of equal content are **lost**", log: "never came to its claim"},
		inside:  beside{text: "an event that failed becomes a dead letter with `ErrNotHandled`", dead: true, log: "remove Deduplicator"},
	},
	{
		name: "InstantAck", make: func(*fixture) message.HandlerMiddleware { return wmiddleware.InstantAck },
		outside: beside{text: allHandled + ", and an error is logged: a process that is killed **loses** its events", log: "Remove InstantAck"},
		inside:  beside{text: allHandled + ", and an error is logged: a process that is killed **loses** its events", log: "Remove InstantAck"},
	},
	{
		name: "Duplicator", make: func(*fixture) message.HandlerMiddleware { return wmiddleware.Duplicator },
		outside: beside{text: allHandled}, inside: beside{text: "every event becomes a dead letter with `ErrCalledAgain`", dead: true, log: "called the handler again"},
	},
}

// discarding is a publisher of poison queues.
type discarding struct{}

func (discarding) Publish(string, ...*message.Message) error { return nil }
func (discarding) Close() error                              { return nil }

// remembering is a repository of the Deduplicator. It forgets a key after two duplicates, which with the first delivery are
// the attempts that an event has.
type remembering struct {
	mu   sync.Mutex
	seen map[string]int
}

func (r *remembering) IsDuplicate(_ context.Context, key string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.seen[key]
	r.seen[key] = (before + 1) % 3
	return before > 0, nil
}

func (f *fixture) deduplicator() message.HandlerMiddleware {
	return (&wmiddleware.Deduplicator{
		KeyFactory: func(m *message.Message) (string, error) { return m.UUID, nil },
		Repository: &remembering{seen: map[string]int{}}, Timeout: time.Second,
	}).Middleware
}

// syncBuffer is a log that several goroutines write.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// route runs a router with the middleware, and the claim with its Subscriber and Handler where it is watched.
func (f *fixture) route(cfg claim.Config, watched bool, outside, inside []message.HandlerMiddleware, h message.NoPublishHandlerFunc) (m *memory.Transport, stop func()) {
	m = f.broker()
	cfg.Service, cfg.Backoff = "labour", func(int) time.Duration { return time.Millisecond }
	c, err := claim.New(f.store, cfg)
	require.NoError(f.t, err)
	claim.PollEvery(c, 20*time.Millisecond)
	sub, err := m.Connect().Subscriber(transport.SubscriberConfig{Consumer: "notify", Ordered: true})
	require.NoError(f.t, err)
	if watched {
		sub, h = c.Subscriber("notify", sub, claim.Within(10)), c.Handler("notify", h)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(f.t, err)
	router.AddMiddleware(outside...)
	router.AddMiddleware(c.Middleware)
	router.AddMiddleware(inside...)
	router.AddConsumerHandler("notify", eventTopic, sub, h)
	return m, f.run(router)
}

// failFirst takes an effect, and fails each event's first attempt behind it.
func (f *fixture) failFirst(panics bool) message.NoPublishHandlerFunc {
	var mu sync.Mutex
	failed := map[string]bool{}
	return func(msg *message.Message) error {
		if err := f.take(msg); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if failed[msg.UUID] {
			return nil
		}
		failed[msg.UUID] = true
		if panics {
			panic("oops")
		}
		return errOops
	}
}

// Watermill's own middleware lost 60 of 60 events without a word: each failed once, and was acked then.
func TestWatermillMiddleware(t *testing.T) {
	t.Parallel()
	const n = 12
	for _, w := range watermills {
		for side, b := range map[string]beside{"outside": w.outside, "inside": w.inside} {
			t.Run(w.name+" "+side, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				var log syncBuffer
				var outside, inside []message.HandlerMiddleware
				if side == "outside" {
					outside = append(outside, w.make(f))
				} else {
					inside = append(inside, w.make(f))
				}
				m, stop := f.route(claim.Config{MaxAttempts: 3, Logger: slog.New(slog.NewTextHandler(&log, nil))}, true, outside, inside, f.failFirst(w.panics))
				for range n {
					f.publish(m, keyed(outbox.NewID(), ""))
				}
				f.eventually(func() bool { return len(f.effects())+f.count("claim_failed where state = 'dead'") == n }, "no event is lost")
				stop()
				want := n
				if b.dead {
					want = 0
				}
				effects := f.effects()
				assert.Len(t, effects, want)
				for id, times := range effects {
					assert.Equal(t, 1, times, id)
				}
				if b.log == "" {
					assert.NotContains(t, log.String(), "level=ERROR")
				} else {
					assert.Contains(t, log.String(), b.log)
				}
			})
		}
	}

	t.Run("docs", func(t *testing.T) {
		t.Parallel()
		page, err := os.ReadFile("../../docs/how-to/from-watermill.md")
		require.NoError(t, err)
		for _, w := range watermills {
			assert.Contains(t, string(page), "| `"+w.name+"` | "+w.outside.text+" | "+w.inside.text+" |\n")
		}
	})

	t.Run("control", func(t *testing.T) { // without Claim.Subscriber and Claim.Handler nobody can see it
		for _, outside := range []bool{true, false} {
			f := newFixture(t)
			both := [2][]message.HandlerMiddleware{}
			at := 0
			if outside {
				at = 1
			}
			both[at] = append(both[at], f.deduplicator())
			m, stop := f.route(claim.Config{Logger: silent}, false, both[1], both[0], f.failFirst(false))
			for range n {
				f.publish(m, keyed(outbox.NewID(), ""))
			}
			if !outside {
				f.eventually(func() bool { return f.count("processed") == n }, "they count as processed")
			}
			stop()
			assert.Empty(t, f.effects(), "and none was handled")
			assert.Zero(t, f.count("claim_failed where state = 'dead'"))
		}
	})

	t.Run("a filter says so", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		filter := func(message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				claim.Skip(msg.Context())
				return nil, nil
			}
		}
		m, stop := f.route(claim.Config{Logger: silent}, true, nil, []message.HandlerMiddleware{filter}, f.take)
		f.publish(m, keyed(outbox.NewID(), ""))
		f.eventually(func() bool { return f.count("processed") == 1 }, "it counts as processed")
		stop()
		assert.Zero(t, f.count("claim_failed"))
	})

	t.Run("InstantAck and MaxPerKey", func(t *testing.T) {
		t.Parallel()
		f, release := newFixture(t), make(chan struct{})
		m, stop := f.route(claim.Config{Logger: silent, MaxPerKey: 1}, true, []message.HandlerMiddleware{wmiddleware.InstantAck}, nil, func(msg *message.Message) error {
			<-release
			return f.take(msg)
		})
		for range 3 {
			f.publish(m, keyed(outbox.NewID(), "hot"))
		}
		f.eventually(func() bool {
			return f.count("claim_failed where state = 'retrying' and attempts = 0 and reason = 'acked'") == 2
		}, "the table keeps those without a slot")
		close(release)
		f.eventually(func() bool { return len(f.effects()) == 1 }, "the one with the slot is handled")
		stop()
	})

	t.Run("InstantAck without the claim's subscriber", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		var log syncBuffer
		m, stop := f.route(claim.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, false, []message.HandlerMiddleware{wmiddleware.InstantAck}, nil, f.failFirst(false))
		for range n {
			f.publish(m, keyed(outbox.NewID(), ""))
		}
		f.eventually(func() bool { return f.count("claim_failed where state = 'dead'") == n }, "nobody redelivers them: an operator decides")
		stop()
		assert.Contains(t, log.String(), "Remove InstantAck")
		assert.NotContains(t, strings.ToLower(log.String()), "event is lost")
	})
}
