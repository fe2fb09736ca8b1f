package claim_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

const eventTopic = "labour.completed"

// broker is one that several processes of a test share.
func (f *fixture) broker() *memory.Transport {
	m, err := memory.New(memory.Config{})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { require.NoError(f.t, m.Close()) })
	s, err := m.Subscriber(transport.SubscriberConfig{Consumer: "notify", Ordered: true})
	require.NoError(f.t, err)
	require.NoError(f.t, s.(message.SubscribeInitializer).SubscribeInitialize(eventTopic))
	return m
}

func (f *fixture) publish(m *memory.Transport, msgs ...*message.Message) {
	p, err := m.Publisher()
	require.NoError(f.t, err)
	require.NoError(f.t, p.Publish(eventTopic, msgs...))
}

func keyed(id, key string) *message.Message {
	msg := message.NewMessage(id, []byte("payload of "+id))
	transport.SetKey(msg, key)
	return msg
}

// serve runs a process that consumes the topic as "notify", with a claim of its own.
func (f *fixture) serve(m *memory.Transport, cfg claim.Config, h message.NoPublishHandlerFunc, outside ...message.HandlerMiddleware) (stop func()) {
	if cfg.Backoff == nil {
		cfg.Backoff = func(int) time.Duration { return time.Millisecond }
	}
	cfg.Logger = silent
	c, err := claim.New(f.store, f.inMode(cfg))
	require.NoError(f.t, err)
	return f.consume(m, c, h, outside...)
}

// consume is serve with a claim that is there.
func (f *fixture) consume(m *memory.Transport, c *claim.Claim, h message.NoPublishHandlerFunc, outside ...message.HandlerMiddleware) (stop func()) {
	claim.PollEvery(c, 50*time.Millisecond)
	sub, err := m.Connect().Subscriber(transport.SubscriberConfig{Consumer: "notify", Ordered: true})
	require.NoError(f.t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(f.t, err)
	router.AddMiddleware(outside...)
	router.AddMiddleware(c.Middleware)
	router.AddConsumerHandler("notify", eventTopic, c.Subscriber("notify", sub), h)
	return f.run(router)
}

func (f *fixture) eventually(condition func() bool, what string) {
	require.Eventually(f.t, condition, time.Minute, 20*time.Millisecond, what)
}

func (f *fixture) take(msg *message.Message) error { return f.effect(msg.Context(), msg.UUID) }

// The broker delivers a failing event once; Millrace brings it back as it was.
func TestFailingEventIsBroughtBack(t *testing.T) { perMode(t, testFailingEventIsBroughtBack) }

func testFailingEventIsBroughtBack(t *testing.T, f *fixture) {
	m := f.broker()
	sent := keyed(outbox.NewID(), "k")
	sent.Metadata.Set("type", "completed")
	var attempts []int
	f.serve(m, claim.Config{}, func(msg *message.Message) error {
		if msg.UUID == "after" {
			return f.take(msg)
		}
		if err := f.take(msg); err != nil {
			return err
		}
		attempts = append(attempts, transport.DeliveryFrom(msg.Context()).Attempt()) // one after another
		assert.True(t, sent.Equals(msg), "ID, metadata with the key, payload")
		assert.Equal(t, "notify "+eventTopic, message.HandlerNameFromCtx(msg.Context())+" "+message.SubscribeTopicFromCtx(msg.Context()))
		switch len(attempts) {
		case 2:
			panic("oops")
		case 3:
			return nil
		}
		return errOops
	})
	f.publish(m, sent)
	f.eventually(func() bool { return len(f.effects()) == 1 }, "it succeeds in the end")
	f.eventually(func() bool { return len(f.failed()) == 0 }, "the table is empty again")
	assert.Equal(t, []int{1, 2, 3}, attempts)
	assert.Equal(t, 1, f.effects()[sent.UUID])

	f.publish(m, sent.Copy(), keyed("after", "k"))
	f.eventually(func() bool { return f.effects()["after"] == 1 }, "the next of its key")
	assert.Equal(t, 1, f.effects()[sent.UUID], "the redelivery was absorbed")
	assert.Len(t, attempts, 3)
}

func TestEventRestsBetweenAttempts(t *testing.T) { perMode(t, testEventRestsBetweenAttempts) }

func testEventRestsBetweenAttempts(t *testing.T, f *fixture) {
	m := f.broker()
	var at []time.Time
	rest := 60 * time.Millisecond
	f.serve(m, claim.Config{MaxAttempts: 4, Backoff: func(n int) time.Duration { return time.Duration(n) * rest }}, func(*message.Message) error {
		at = append(at, time.Now())
		return errOops
	})
	f.publish(m, keyed("1", ""))
	f.eventually(func() bool { rows := f.failed(); return len(rows) == 1 && rows[0].State == "dead" }, "dead after 4 attempts")
	require.Len(t, at, 4)
	for n := 1; n < len(at); n++ {
		assert.GreaterOrEqual(t, at[n].Sub(at[n-1]), time.Duration(n)*rest)
	}
	assert.Equal(t, 4, f.failed()[0].Attempts)
}

// pause is middleware outside of the claim that stops events of the table on their way, until on is sent to.
type pause struct{ arrived, on chan struct{} }

func newPause() *pause { return &pause{make(chan struct{}), make(chan struct{})} }

func (p *pause) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if transport.DeliveryFrom(msg.Context()).Attempt() > 1 {
			p.arrived <- struct{}{}
			<-p.on
		}
		return h(msg)
	}
}

// failOnce fails the first attempt of each event.
func (f *fixture) failOnce(msg *message.Message) error {
	if err := f.take(msg); err != nil {
		return err
	}
	if transport.DeliveryFrom(msg.Context()).Attempt() == 1 {
		return errOops
	}
	return nil
}

func TestEventThatAnOperatorTookAwayIsNotHandled(t *testing.T) {
	perMode(t, testEventThatAnOperatorTookAwayIsNotHandled)
}

func testEventThatAnOperatorTookAwayIsNotHandled(t *testing.T, f *fixture) {
	p := newPause()
	m := f.broker()
	f.serve(m, claim.Config{}, f.failOnce, p.middleware)
	f.publish(m, keyed("1", ""))
	<-p.arrived
	f.exec(`delete from ` + f.schema + `.claim_failed`)
	p.on <- struct{}{}
	f.publish(m, keyed("2", ""))
	<-p.arrived
	p.on <- struct{}{}
	f.eventually(func() bool { return f.effects()["2"] == 1 }, "the next one is handled")
	assert.Len(t, f.effects(), 1)
	assert.Empty(t, f.failed())
}

func TestEditTakesEffectThoughTheEventIsOnItsWay(t *testing.T) {
	perMode(t, testEditTakesEffectThoughTheEventIsOnItsWay)
}

func testEditTakesEffectThoughTheEventIsOnItsWay(t *testing.T, f *fixture) {
	p := newPause()
	m := f.broker()
	var payload atomic.Value
	f.serve(m, claim.Config{}, func(msg *message.Message) error {
		payload.Store(string(msg.Payload))
		return f.failOnce(msg)
	}, p.middleware)
	f.publish(m, keyed("1", ""))
	<-p.arrived
	f.exec(`update ` + f.schema + `.claim_failed set payload = 'mended'`)
	p.on <- struct{}{}
	<-p.arrived // it comes again
	p.on <- struct{}{}
	f.eventually(func() bool { return f.effects()["1"] == 1 }, "it is handled")
	assert.Equal(t, "mended", payload.Load())
}

// A command that comes while the handler runs waits for its end, and finds nothing left.
func TestEventIsTakenAwayWhileItsHandlerRuns(t *testing.T) {
	perMode(t, testEventIsTakenAwayWhileItsHandlerRuns)
}

func testEventIsTakenAwayWhileItsHandlerRuns(t *testing.T, f *fixture) {
	m := f.broker()
	running, finish := make(chan struct{}), make(chan struct{})
	f.serve(m, claim.Config{}, func(msg *message.Message) error {
		if transport.DeliveryFrom(msg.Context()).Attempt() > 1 {
			close(running)
			<-finish
		}
		return f.failOnce(msg)
	})
	f.publish(m, keyed("1", ""))
	<-running
	deleted := make(chan int64)
	go func() {
		tag, err := f.pool.Exec(context.Background(), `delete from `+f.schema+`.claim_failed`)
		assert.NoError(t, err)
		deleted <- tag.RowsAffected()
	}()
	f.eventually(func() bool {
		return f.blocked() > 0
	}, "the command waits")
	close(finish)
	assert.Zero(t, <-deleted)
	assert.Equal(t, map[string]int{"1": 1}, f.effects())
}

// blocked is how many sessions wait for one that holds a lock of the schema's claim_failed.
func (f *fixture) blocked() (n int) {
	require.NoError(f.t, f.pool.QueryRow(context.Background(), `select count(*) from pg_stat_activity a
		where cardinality(pg_blocking_pids(a.pid)) > 0 and a.query like '%' || $1 || '.claim_failed%'`, f.schema).Scan(&n))
	return n
}

// An outage is no attempt, also of an event that was brought back; and it is soon tried again, long before its lease ends.
func TestOutageWhileAnEventIsTriedAgain(t *testing.T) { perMode(t, testOutageWhileAnEventIsTriedAgain) }

func testOutageWhileAnEventIsTriedAgain(t *testing.T, f *fixture) {
	m := f.broker()
	var runs atomic.Int32
	f.serve(m, claim.Config{MaxAttempts: 2}, func(msg *message.Message) error {
		if runs.Add(1) == 2 {
			f.killConnection(msg.Context())
			return errors.New("conn closed")
		}
		return f.failOnce(msg)
	})
	f.publish(m, keyed("1", ""))
	f.eventually(func() bool { return f.effects()["1"] == 1 }, "it is handled")
	assert.Equal(t, int32(3), runs.Load())
}

// A running handler of an event of the table may finish, and what is not begun is left to others at once.
func TestSubscriberStops(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m := f.broker()
	running, finish := make(chan struct{}), make(chan struct{})
	stop := f.serve(m, claim.Config{}, func(msg *message.Message) error {
		if transport.DeliveryFrom(msg.Context()).Attempt() > 1 {
			close(running)
			<-finish
		}
		return f.failOnce(msg)
	})
	f.publish(m, keyed("1", ""))
	<-running
	stopped := make(chan struct{})
	go func() {
		stop()
		close(stopped)
	}()
	select {
	case <-stopped:
		t.Error("it stopped although a handler runs")
	case <-time.After(100 * time.Millisecond): // nothing to wait for: it must not happen
	}
	close(finish)
	<-stopped
	assert.Equal(t, map[string]int{"1": 1}, f.effects())
	assert.Empty(t, f.failed())
}

func TestSubscriberOfAnotherConsumer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m := f.broker()
	c, err := claim.New(f.store, claim.Config{Service: "labour"})
	require.NoError(t, err)
	inner, err := m.Subscriber(transport.SubscriberConfig{Consumer: "notify", Ordered: true})
	require.NoError(t, err)
	sub := c.Subscriber("bill", inner)
	messages, err := sub.Subscribe(t.Context(), eventTopic)
	require.NoError(t, err)
	f.publish(m, keyed("1", ""))
	msg := <-messages
	_, err = f.middleware(claim.Config{})(f.handler)(msg)
	require.ErrorContains(t, err, `Subscriber("labour/bill")`)
	require.ErrorContains(t, err, `"labour/notify"`)
	msg.Ack()
	require.NoError(t, sub.Close())
	_, open := <-messages
	assert.False(t, open)
	_, err = sub.Subscribe(t.Context(), eventTopic)
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = c.Subscriber("", inner).Subscribe(t.Context(), eventTopic)
	require.ErrorContains(t, err, "consumer is empty")
}

// Events of the table go to the subscription of their topic.
func TestSubscriptionsOfOneConsumer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c, err := claim.New(f.store, claim.Config{
		Service:  "labour",
		Consumer: func(string) string { return "notify" }, Logger: silent,
		Backoff: func(int) time.Duration { return time.Millisecond },
	})
	require.NoError(t, err)
	m, err := memory.New(memory.Config{})
	require.NoError(t, err)
	inner, err := m.Subscriber(transport.SubscriberConfig{Consumer: "notify"})
	require.NoError(t, err)
	sub := c.Subscriber("notify", inner)
	p, err := m.Publisher()
	require.NoError(t, err)
	for _, topic := range []string{"one", "two"} {
		require.NoError(t, sub.(message.SubscribeInitializer).SubscribeInitialize(topic))
		messages, err := sub.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		for i := range 20 {
			require.NoError(t, p.Publish(topic, message.NewMessage(topic+string(rune('a'+i)), []byte(topic))))
		}
		for range 40 { // each comes twice
			msg := <-messages
			assert.Equal(t, topic, string(msg.Payload))
			_, err := c.Middleware(func(msg *message.Message) ([]*message.Message, error) { return nil, f.failOnce(msg) })(msg)
			require.NoError(t, err)
			msg.Ack()
		}
	}
	require.NoError(t, sub.Close())
	assert.Len(t, f.effects(), 40)
	assert.Empty(t, f.failed())
}

// A process is killed that was about to handle a failed event again: another one does within seconds, however long a handler
// may take. While a handler runs, nobody else gets its event, although the lease has ended.
func TestLeaseIsShorterThanTheHandler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	m := f.broker()
	f.publish(m, keyed("e", ""))
	began, release := make(chan struct{}, 10), make(chan struct{})
	var calls atomic.Int32
	h := func(msg *message.Message) error {
		switch calls.Add(1) {
		case 1:
			return errOops
		case 2:
			began <- struct{}{}
			<-release
		}
		return f.take(msg)
	}
	cfg := claim.Config{HandlerTimeout: time.Hour, Backoff: func(int) time.Duration { return 10 * time.Millisecond }}
	f.serve(m, cfg, h)
	f.serve(m, cfg, h)
	<-began
	var seconds float64
	require.NoError(t, f.pool.QueryRow(t.Context(), `select extract(epoch from due_at - now()) from `+f.schema+`.claim_failed`).Scan(&seconds))
	assert.Less(t, seconds, 10.1, "this long another process waits")
	lock, err := f.pool.Exec(t.Context(), `select 1 from `+f.schema+`.claim_failed for update skip locked`)
	require.NoError(t, err)
	assert.Zero(t, lock.RowsAffected(), "and it passes over an event that is being handled")
	close(release)
	f.eventually(func() bool { return len(f.failed()) == 0 }, "it is handled")
	assert.Equal(t, map[string]int{"e": 1}, f.effects())
	assert.EqualValues(t, 2, calls.Load())
}

// A handler ended its goroutine at the second attempt, and with it the router's: the event was neither acked nor nacked, and no attempt
// was counted.
func TestGoexitOfARetry(t *testing.T) { perMode(t, testGoexitOfARetry) }

func testGoexitOfARetry(t *testing.T, f *fixture) {
	m := f.broker()
	f.serve(m, claim.Config{MaxAttempts: 2}, func(msg *message.Message) error {
		if err := f.failOnce(msg); err != nil {
			return err
		}
		runtime.Goexit()
		return nil
	})
	f.publish(m, keyed("1", ""))
	f.eventually(func() bool { rows := f.failed(); return len(rows) == 1 && rows[0].State == "dead" }, "the attempt is counted")
	assert.Contains(t, f.failed()[0].Error, "runtime.Goexit")
	assert.Empty(t, f.effects())
}
