package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/transport"
)

// flow keeps events of other keys coming until the test ends: without them nobody could tell a poison event from an outage.
func (f *fixture) flow() (stop func()) {
	var done atomic.Bool
	var flowing sync.WaitGroup
	flowing.Go(func() {
		pace := time.NewTicker(2 * time.Millisecond) // not to fill the machine
		defer pace.Stop()
		for i := 0; !done.Load(); i++ {
			f.publish("other "+strconv.Itoa(i%20), strconv.Itoa(i))
			<-pace.C
		}
	})
	stop = sync.OnceFunc(func() { done.Store(true); flowing.Wait() })
	f.t.Cleanup(stop)
	return stop
}

// An event that the broker never takes is dead with its reason, its key waits behind it, and everything else goes on.
// After an operator's retry the key drains in order, with newcomers that race with the drain behind it.
func TestPoisonEventBlocksItsKeyAlone(t *testing.T) {
	t.Parallel()
	for name, wrap := range publishers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, broker := newFixture(t), newRecorder()
			broker.refuseAll(func(p string) bool { return p == "poison 0" })
			f.run(f.newRelay(wrap(broker), outbox.RelayConfig{MaxAttempts: 3}))
			stopFlow := f.flow()
			for i := range 5 {
				f.publish("poison", fmt.Sprint("poison ", i))
			}
			eventually(t, "it is dead, the others behind it", func() bool {
				return assert.ObjectsAreEqual([]string{"poison 0 dead 3", "poison 1 blocked 0", "poison 2 blocked 0", "poison 3 blocked 0", "poison 4 blocked 0"}, f.failed("poison"))
			})
			var reason string
			require.NoError(t, f.pool.QueryRow(t.Context(), `select reason from `+f.schema+`.outbox_failed where state = 'dead'`).Scan(&reason))
			assert.Equal(t, errRefused.Error(), reason)
			f.publish("poison", "poison 5")
			eventually(t, "newcomers queue", func() bool { return len(f.failed("poison")) == 6 })
			assert.Empty(t, broker.of("poison"))

			broker.refuseAll(nil)
			var newcomers sync.WaitGroup
			newcomers.Go(func() {
				for i := 6; i < 200; i++ {
					f.publish("poison", fmt.Sprint("poison ", i))
				}
			})
			f.command("retry", "poison 0")
			newcomers.Wait()
			eventually(t, "the key drains", func() bool { return len(broker.of("poison")) >= 200 })
			var want []string
			for i := range 200 {
				want = append(want, fmt.Sprint("poison ", i))
			}
			assert.Equal(t, want, broker.of("poison"), "in order, each once")
			stopFlow()
			eventually(t, "nothing is left", func() bool { return f.rows() == 0 })
		})
	}
}

// A discarded event no longer holds its key up. It is kept, to be seen.
func TestDiscard(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	broker.refuseAll(func(p string) bool { return p == "poison" })
	f.run(f.newRelay(rejecting{batchRecorder{broker}}, outbox.RelayConfig{}))
	f.publish("k", "poison")
	f.publish("k", "next")
	eventually(t, "an event that the broker rejects is dead at once", func() bool {
		return assert.ObjectsAreEqual([]string{"poison dead 1", "next blocked 0"}, f.failed("k"))
	})
	f.command("discard", "poison")
	eventually(t, "the next one is sent", func() bool { return assert.ObjectsAreEqual([]string{"next"}, broker.of("k")) })
	eventually(t, "it is discarded", func() bool { return assert.ObjectsAreEqual([]string{"poison discarded 1"}, f.failed("k")) })
	f.publish("k", "later")
	eventually(t, "the key is an ordinary one", func() bool { return len(broker.of("k")) == 2 })

	broker.refuseAll(nil)
	f.command("retry", "poison")
	eventually(t, "a discarded one can be retried", func() bool { return len(broker.of("k")) == 3 && len(f.failed("k")) == 0 })
}

// An operator discards an event while it is being sent. The answer of the broker once undid that, and the next event of its key was
// fetched beside it.
func TestDiscardWhileItIsSent(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	broker.refuseAll(func(p string) bool { return p == "poison" })
	f.run(f.newRelay(rejecting{batchRecorder{broker}}, outbox.RelayConfig{PollInterval: 20 * time.Millisecond}))
	f.publish("k", "poison")
	f.publish("k", "next")
	dead := []string{"poison dead 1", "next blocked 0"}
	eventually(t, "dead", func() bool { return assert.ObjectsAreEqual(dead, f.failed("k")) })
	hold := make(chan struct{})
	broker.mu.Lock()
	broker.hold = hold
	broker.mu.Unlock()
	f.command("retry", "poison")
	<-broker.waiting
	f.command("discard", "poison")
	assert.Never(t, func() bool { return f.failed("k")[0] == "poison discarded 0" }, 300*time.Millisecond, 10*time.Millisecond, "it is being sent")
	close(hold)
	eventually(t, "then it is discarded", func() bool { return assert.ObjectsAreEqual([]string{"poison discarded 1"}, f.failed("k")) })
	assert.Equal(t, []string{"next"}, broker.of("k"))
}

// rejecting is a broker whose refusals say that sending again cannot help.
type rejecting struct{ batchRecorder }

func (r rejecting) Publish(topic string, msgs ...*message.Message) error {
	return rejected(r.batchRecorder.Publish(topic, msgs...))
}

func (r rejecting) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	errs := r.batchRecorder.PublishBatch(ctx, topic, msgs)
	for i := range errs {
		errs[i] = rejected(errs[i])
	}
	return errs
}

func rejected(err error) error {
	if errors.Is(err, errRefused) {
		return fmt.Errorf("%w: %w", transport.ErrRejected, err)
	}
	return err
}

// Without a key nothing waits behind an event that fails.
func TestPoisonEventWithoutKey(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	broker.refuseAll(func(p string) bool { return p == "poison" })
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{MaxAttempts: 2}))
	defer f.flow()()
	f.publish("", "poison")
	f.publish("", "fine")
	eventually(t, "it is dead", func() bool { return assert.ObjectsAreEqual([]string{"poison dead 2"}, f.failed("")) })
	assert.Equal(t, []string{"fine"}, broker.of(""))
}

// While the broker is down no row moves and no attempt is counted, whatever it answers; afterwards all drains in order.
func TestOutageMovesNothing(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]error{
		"an error that tells nothing": errRefused,
		"an error that tells":         fmt.Errorf("%w: connection refused", transport.ErrUnavailable),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, broker := newFixture(t), newRecorder()
			p := &failing{batchRecorder: batchRecorder{broker}}
			f.run(f.newRelay(p, outbox.RelayConfig{MaxAttempts: 1, BatchSize: 20}))
			f.publish("before", "it works")
			eventually(t, "it works", func() bool { return broker.count() == 1 && f.rows() == 0 })
			p.err.Store(&outage)
			for i := range 400 {
				f.publish(strconv.Itoa(i%50), strconv.Itoa(i))
			}
			f.publish("", "without a key")
			eventually(t, "it is tried", func() bool { return p.calls.Load() > 3 })
			assert.Equal(t, 401, f.rows())
			var moved int
			require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from `+f.schema+`.outbox_failed`).Scan(&moved))
			assert.Zero(t, moved)
			p.err.Store(nil)
			eventually(t, "the backlog drains", func() bool { return f.rows() == 0 })
			for key := range 50 {
				assert.Equal(t, []string{strconv.Itoa(key), strconv.Itoa(key + 50), strconv.Itoa(key + 100)}, broker.of(strconv.Itoa(key))[:3])
				assert.Len(t, broker.of(strconv.Itoa(key)), 8)
			}
		})
	}
}

// failing is a broker that can be down.
type failing struct {
	batchRecorder
	err   atomic.Pointer[error]
	calls atomic.Int64
}

func (p *failing) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	p.calls.Add(1)
	if err := p.err.Load(); err != nil {
		errs := make([]error, len(msgs))
		for i := range errs {
			errs[i] = *err
		}
		return errs
	}
	return p.batchRecorder.PublishBatch(ctx, topic, msgs)
}

// A topic whose publishing takes for ever does not hold the others up, however much of it there is in front of them.
func TestSlowTopicDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	p := &slow{batchRecorder: batchRecorder{broker}, release: make(chan struct{})}
	const events = 5000
	f.publishMany("slow", events, strconv.Itoa)
	f.publishMany(topic, 100, func(i int) string { return "fast " + strconv.Itoa(i) })
	f.run(f.newRelay(p, outbox.RelayConfig{BatchSize: 10, MaxInFlight: 20}))
	eventually(t, "the others are published", func() bool { return broker.count() == 100 })
	close(p.release)
	require.Eventually(t, func() bool { return f.rows() == 0 }, 2*time.Minute, 20*time.Millisecond)
	assert.Equal(t, events+100, broker.count(), "each once")
}

type slow struct {
	batchRecorder
	release chan struct{}
}

func (p *slow) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	if topic == "slow" {
		<-p.release
	}
	return p.batchRecorder.PublishBatch(ctx, topic, msgs)
}

// A publisher that panics over one message does not end the process: the others are sent, and the message is dead after its attempts.
func TestPanickingPublisher(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	broker.refuseAll(func(p string) bool {
		if p == "panic" {
			panic("no such thing")
		}
		return false
	})
	f.publishMany(topic, 50, strconv.Itoa)
	f.publish("7", "panic")
	f.publish("7", "behind it")
	f.run(f.newRelay(panicking{broker}, outbox.RelayConfig{MaxAttempts: 2}))
	eventually(t, "it is dead", func() bool {
		f.publish("another", "p") // an event's own failure is one between two of which the broker took another
		return assert.ObjectsAreEqual([]string{"panic dead 2", "behind it blocked 0"}, f.failed("7"))
	})
	eventually(t, "the others are sent", func() bool { return f.rows() == 2 })
	assert.GreaterOrEqual(t, broker.count(), 50)
}

// A publisher that panics whatever it is given accuses no event: all are published once it works again.
func TestPublisherThatAlwaysPanics(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	var broken atomic.Bool
	var asked atomic.Int64
	broken.Store(true)
	broker.refuseAll(func(string) bool {
		if broken.Load() {
			asked.Add(1)
			panic("it is closed")
		}
		return false
	})
	f.publishMany(topic, 50, strconv.Itoa)
	f.run(f.newRelay(panicking{broker}, outbox.RelayConfig{}))
	eventually(t, "each was tried more than once", func() bool { return asked.Load() > 200 })
	assert.Equal(t, 50, f.rows())
	broken.Store(false)
	eventually(t, "all are published", func() bool { return f.rows() == 0 })
	assert.Equal(t, 50, broker.count())
}

// panicking does not hold the recorder's lock while it panics.
type panicking struct{ *recorder }

func (p panicking) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		p.refuse(string(m.Payload))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range msgs {
		p.byKey[transport.Key(m)] = append(p.byKey[transport.Key(m)], string(m.Payload))
	}
	return nil
}

// An event that ends the process of every relay that sends it is set aside after the third, and dead after one more;
// everything else is sent.
func TestEventThatKillsItsRelay(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	f := newFixture(t)
	f.publishMany(topic, 200, strconv.Itoa)
	f.publish("killer", "kills its relay")
	f.publish("killer", "behind it")
	f.publishMany(topic, 200, func(i int) string { return strconv.Itoa(200 + i) })
	d := newDeliveries(t)
	f.relaysUntilDead(d)
	relay := d.relay(f.schema, "")
	defer kill(relay)
	eventually(t, "everything else is sent", func() bool { return f.rows() == 2 })
	assert.Equal(t, []string{"kills its relay dead 4", "behind it blocked 0"}, f.failed("killer"))
}

// relaysUntilDead runs one relay after another until the event that kills them is dead for it, and then kills the last.
func (f *fixture) relaysUntilDead(d *deliveries) {
	f.t.Helper()
	dead := func() bool {
		events := f.failed("killer")
		return len(events) > 0 && events[0] == "kills its relay dead 4"
	}
	for deaths := 0; ; deaths++ {
		require.Less(f.t, deaths, 12, "relays died of it")
		relay := d.relay(f.schema, "")
		ended := make(chan struct{})
		go func() { defer close(ended); _ = relay.Wait() }()
		var alive bool
		require.Eventually(f.t, func() bool {
			select {
			case <-ended:
				return true
			default:
				alive = dead()
				return alive
			}
		}, time.Minute, 5*time.Millisecond)
		_ = relay.Process.Kill()
		<-ended
		if alive {
			f.t.Log(deaths, "relays died of it")
			return
		}
	}
}

// Events that are dead because a part of a topic was out of reach are retried when others are published that failed as they did.
func TestDeadEventsAreRetriedWhenTheirErrorHasGone(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	broker.refuseAll(func(p string) bool { return strings.HasPrefix(p, "lost") })
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{MaxAttempts: 3, PollInterval: 50 * time.Millisecond}))
	defer f.flow()()
	for i := range 20 {
		f.publish("key "+strconv.Itoa(i), "lost")
		f.publish("key "+strconv.Itoa(i), "behind")
	}
	dead := func() (n int) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from `+f.schema+`.outbox_failed where state = 'dead'`).Scan(&n))
		return n
	}
	eventually(t, "they are dead", func() bool { return dead() == 20 })
	f.publish("late", "lost later")
	eventually(t, "another one is retried", func() bool { return len(f.failed("late")) == 1 })
	broker.refuseAll(nil)
	eventually(t, "all are published", func() bool {
		for i := range 20 {
			if !assert.ObjectsAreEqual([]string{"lost", "behind"}, broker.of("key "+strconv.Itoa(i))) {
				return false
			}
		}
		return true
	})
}
