package claim_test

import (
	"bytes"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

// serveTopic runs a process that consumes the topic as "notify".
func (f *fixture) serveTopic(m *memory.Transport, c *claim.Claim, topic string, concurrency int, h message.NoPublishHandlerFunc, options ...claim.SubscriberOption) (stop func()) {
	claim.PollEvery(c, 20*time.Millisecond)
	sub, err := m.Connect().Subscriber(transport.SubscriberConfig{Consumer: "notify", Ordered: true, Concurrency: concurrency})
	require.NoError(f.t, err)
	wrapped := c.Subscriber("notify", sub, options...)
	require.NoError(f.t, wrapped.(message.SubscribeInitializer).SubscribeInitialize(topic))
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(f.t, err)
	router.AddMiddleware(c.Middleware)
	router.AddConsumerHandler("notify", topic, wrapped, h)
	return f.run(router)
}

func (f *fixture) quick(cfg claim.Config) *claim.Claim {
	cfg.Service, cfg.Logger, cfg.Backoff = "labour", silent, func(int) time.Duration { return time.Millisecond }
	c, err := claim.New(f.store, cfg)
	require.NoError(f.t, err)
	return c
}

// A topic was renamed while events of its former name had failed. Nobody took them any more: not the one that was to be tried
// again, not the one that an operator replayed, nor the events of their keys.
func TestRenamedTopic(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m, err := memory.New(memory.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	p, err := m.Publisher()
	require.NoError(t, err)
	ids := map[string]string{}
	for _, name := range []string{"retried", "dead", "behind", "behind the dead one", "marker"} {
		ids[name] = outbox.NewID()
	}
	send := func(topic, name, key string) { require.NoError(t, p.Publish(topic, keyed(ids[name], key))) }
	var broken atomic.Bool
	broken.Store(true)
	handle := func(msg *message.Message) error {
		if broken.Load() {
			if msg.UUID == ids["dead"] {
				return claim.Permanent(errOops)
			}
			return errOops
		}
		return f.take(msg)
	}

	stop := f.serveTopic(m, f.quick(claim.Config{Ordered: true, MaxAttempts: 1000}), "before", 4, handle)
	send("before", "retried", "k")
	f.eventually(func() bool { return f.count("claim_failed where state = 'retrying'") == 1 }, "one is to be tried again")
	send("before", "dead", "q")
	f.eventually(func() bool { return f.count("claim_failed where state = 'dead'") == 1 }, "one is dead")
	send("before", "behind", "k")
	send("before", "behind the dead one", "q")
	f.eventually(func() bool { return f.count("claim_failed where state = 'blocked'") == 2 }, "two wait behind them")
	stop()
	broken.Store(false)

	// Control: an event of another topic may be another subscription's, of this process or of another one.
	c := f.quick(claim.Config{Ordered: true})
	sub, err := m.Connect().Subscriber(transport.SubscriberConfig{Consumer: "notify"})
	require.NoError(t, err)
	other := c.Subscriber("notify", sub)
	require.NoError(t, other.(message.SubscribeInitializer).SubscribeInitialize("third"))
	_, err = other.Subscribe(t.Context(), "third")
	require.NoError(t, err)
	claim.AdoptAfter(c, time.Millisecond)
	first := atomic.Bool{}
	stop = f.serveTopic(m, c, "after", 4, func(msg *message.Message) error {
		if !first.Swap(true) {
			return errOops
		}
		return f.take(msg)
	})
	send("after", "marker", "m")
	f.eventually(func() bool { return f.effects()[ids["marker"]] == 1 }, "its own event is retried")
	assert.Equal(t, 4, f.count("claim_failed"), "the others stay")
	stop()
	require.NoError(t, other.Close())

	c = f.quick(claim.Config{Ordered: true})
	claim.AdoptAfter(c, time.Millisecond)
	f.serveTopic(m, c, "after", 4, handle)
	f.eventually(func() bool { return f.effects()[ids["behind"]] == 1 }, "the key is free")
	assert.Equal(t, 1, f.effects()[ids["retried"]])
	r, err := deadletter.Replay(t.Context(), f.pool, f.schema, deadletter.Selection{EventIDs: []string{ids["dead"]}}, deadletter.By{Actor: "test"})
	require.NoError(t, err)
	assert.Equal(t, 1, r.Done)
	f.eventually(func() bool { return f.effects()[ids["behind the dead one"]] == 1 }, "its key is free too")
	assert.Len(t, f.effects(), 5)
	assert.Zero(t, f.count("claim_failed"))
	assert.Zero(t, f.count("claim_key"))
}

// A subscription of concurrency 1 ran up to eleven handlers at once: its own message's, and those of events of the table.
func TestRetriesWithinConcurrency(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m, err := memory.New(memory.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	var running, most atomic.Int32
	const n = 40
	stop := f.serveTopic(m, f.quick(claim.Config{}), eventTopic, 1, func(msg *message.Message) error {
		now := running.Add(1)
		defer running.Add(-1)
		for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
		}
		tx, _ := pgtx.From(msg.Context())
		if _, err := tx.Exec(msg.Context(), `select pg_sleep(0.005)`); err != nil { // long enough for two to meet
			return err
		}
		return f.failOnce(msg)
	}, claim.Within(1))
	for range n {
		f.publish(m, keyed(outbox.NewID(), ""))
	}
	f.eventually(func() bool { return len(f.effects()) == n }, "each is handled, at its second attempt")
	stop()
	assert.EqualValues(t, 1, most.Load())
	assert.Zero(t, f.count("claim_failed"))

	t.Run("control", func(t *testing.T) { // without the limit
		f := newFixture(t)
		m, err := memory.New(memory.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		retried := make(chan struct{})
		stop := f.serveTopic(m, f.quick(claim.Config{}), eventTopic, 1, func(msg *message.Message) error {
			switch {
			case msg.UUID == "a" && transport.DeliveryFrom(msg.Context()).Attempt() == 1:
				return errOops
			case msg.UUID == "a":
				close(retried)
			default:
				select {
				case <-retried:
				case <-time.After(time.Minute):
					return errors.New("the event of the table did not come meanwhile")
				}
			}
			return f.take(msg)
		})
		f.publish(m, keyed("a", ""), keyed("b", ""))
		f.eventually(func() bool { return len(f.effects()) == 2 }, "two handlers ran at once")
		stop()
		assert.Equal(t, map[string]int{"a": 1, "b": 1}, f.effects())
	})
}

// Retries do not starve beside a transport that always has a message, nor the other way round. They did where handlers took longer than
// a lease: an event was leased before it had a slot, and its lease had expired when it got one.
func TestRetriesWithinConcurrencyHaveTheirTurn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m, err := memory.New(memory.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	var retried atomic.Bool
	c := f.quick(claim.Config{})
	claim.LeaseFor(c, 5*time.Millisecond)
	stop := f.serveTopic(m, c, eventTopic, 1, func(msg *message.Message) error {
		tx, _ := pgtx.From(msg.Context())
		if _, err := tx.Exec(msg.Context(), `select pg_sleep(0.1)`); err != nil {
			return err
		}
		if msg.UUID == "a" {
			if transport.DeliveryFrom(msg.Context()).Attempt() == 1 {
				return errOops
			}
			retried.Store(true)
		} else if !retried.Load() {
			f.publish(m, keyed(outbox.NewID(), ""))
		}
		return f.take(msg)
	}, claim.Within(1))
	f.publish(m, keyed("a", ""), keyed("b", ""))
	f.eventually(func() bool { return f.effects()["a"] == 1 }, "the event of the table has its turn")
	stop()
}

// An event of the table that waits for a slot behind a slow handler is not leased, so another process may handle it. It is not delivered
// once more.
func TestRetriesWithinConcurrencyLeaseNothingWithoutASlot(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m := f.broker()
	var log bytes.Buffer
	one, err := claim.New(f.store, claim.Config{
		Service: "labour", MaxAttempts: 1000, HandlerTimeout: time.Hour, Backoff: at(time.Millisecond), Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	require.NoError(t, err)
	claim.LeaseFor(one, time.Hour)
	busy, done := make(chan struct{}), make(chan struct{})
	stopOne := f.serveTopic(m, one, eventTopic, 1, func(msg *message.Message) error {
		if msg.UUID == "a" {
			return errOops
		}
		close(busy)
		select {
		case <-done:
		case <-msg.Context().Done():
		}
		return f.take(msg)
	}, claim.Within(1))
	f.publish(m, keyed("a", ""), keyed("b", ""))
	<-busy
	assert.Never(t, func() bool {
		return f.count("claim_failed where event_id = 'a' and due_at > now() + interval '1 minute'") > 0
	}, 200*time.Millisecond, 20*time.Millisecond, "it waits, and is not leased")
	stopTwo := f.serveTopic(m, f.quick(claim.Config{}), eventTopic, 1, f.take)
	f.eventually(func() bool { return f.effects()["a"] == 1 }, "another process handles it")
	stopTwo()
	close(done)
	f.eventually(func() bool { return f.effects()["b"] == 1 }, "the slot is free")
	stopOne()
	assert.NotContains(t, log.String(), "duplicate absorbed")
	assert.Equal(t, map[string]int{"a": 1, "b": 1}, f.effects())
}
