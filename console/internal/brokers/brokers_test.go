package brokers_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console/internal/brokers"
	"github.com/millrace-go/millrace/console/internal/figures"
	"github.com/millrace-go/millrace/internal/doctor"
	"github.com/millrace-go/millrace/transport"
)

// fake is a broker whose topics that slow names do not answer until it is closed.
type fake struct {
	transport.Transport
	lag    int64
	slow   string
	once   sync.Once
	closed chan struct{}
}

func (*fake) Name() string               { return "kafka" }
func (*fake) Ping(context.Context) error { return nil }

func (f *fake) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

func (f *fake) Inspect(_ context.Context, topic, _ string) (transport.Inspection, error) {
	if topic == f.slow {
		<-f.closed
		return transport.Inspection{Lag: -1}, errors.New("closed")
	}
	return transport.Inspection{Topic: true, Consumer: true, Lag: f.lag}, nil
}

func broker(lag int64, slow string, opened *atomic.Int32) brokers.Broker {
	return brokers.Broker{
		Name: "kafka",
		Open: func(context.Context, time.Duration) (transport.Transport, error) {
			opened.Add(1)
			return &fake{lag: lag, slow: slow, closed: make(chan struct{})}, nil
		},
		Subscriptions: func() []doctor.Subscription { return []doctor.Subscription{{Consumer: "shop", Topic: "a"}} },
	}
}

// Brokers of one name and address have answers of their own, each of which changes the version of the pages.
func TestTwoBrokersOfAKind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var opened atomic.Int32
		b := brokers.New([]brokers.Broker{broker(1, "", &opened), broker(2, "", &opened)})
		defer b.Close()
		before := b.Fingerprint("orders")
		assert.Empty(t, b.Lately("orders"))
		all := b.Look(t.Context(), "orders", nil)
		require.Len(t, all, 2)
		assert.Equal(t, int64(1), all[0].Lag.N)
		assert.Equal(t, int64(2), all[1].Lag.N)
		after := b.Fingerprint("orders")
		assert.NotEqual(t, before, after)
		time.Sleep(14 * time.Second)
		b.Look(t.Context(), "orders", nil)
		assert.EqualValues(t, 2, opened.Load(), "the answer is kept for 15 s")
		assert.Equal(t, after, b.Fingerprint("orders"))
		time.Sleep(time.Second)
		b.Look(t.Context(), "orders", nil)
		assert.EqualValues(t, 4, opened.Load())
		assert.NotEqual(t, after, b.Fingerprint("orders"))
		time.Sleep(2 * time.Minute)
		assert.Empty(t, b.Lately("orders"), "nobody knows whether that still holds")
	})
}

// A broker that is slow to answer about a topic does answer: that topic and those after it are marked, and the sum is a lower bound.
func TestASlowBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var opened atomic.Int32
		slow := broker(7, "b", &opened)
		slow.Subscriptions = func() (all []doctor.Subscription) {
			for _, topic := range []string{"a", "b", "c"} {
				all = append(all, doctor.Subscription{Consumer: "shop", Topic: topic})
			}
			return all
		}
		b := brokers.New([]brokers.Broker{slow})
		defer b.Close()
		assert.Zero(t, b.Look(t.Context(), "orders", nil)[0].At, "no page waits for it")
		time.Sleep(5 * time.Second)
		all := b.Look(t.Context(), "orders", nil)
		assert.Empty(t, all[0].Error)
		assert.Equal(t, int64(7), all[0].Lag.N)
		assert.True(t, all[0].Lag.AtLeast)
		require.Len(t, all[0].Topics, 3)
		assert.Equal(t, "the broker answers too slowly to be asked about all", all[0].Topics[1].Error)

		none := broker(7, "a", &opened)
		other := brokers.New([]brokers.Broker{none})
		defer other.Close()
		other.Look(t.Context(), "orders", nil)
		time.Sleep(5 * time.Second)
		assert.Equal(t, "closed", other.Look(t.Context(), "orders", nil)[0].Error, "it has answered nothing")
	})
}

// A panic of the user's functions ends no process, and nothing is asked after Close, also where pages are loaded meanwhile.
func TestABrokerThatPanics(t *testing.T) {
	t.Parallel()
	b := brokers.New([]brokers.Broker{{Name: "kafka", Open: func(context.Context, time.Duration) (transport.Transport, error) { panic("oops") }}})
	b.Look(t.Context(), "orders", nil)
	require.Eventually(t, func() bool { return len(b.Lately("orders")) > 0 }, time.Minute, time.Millisecond)
	assert.Equal(t, "asking it panicked: oops", b.Lately("orders")[0].Error)
	b.Close()

	var opened atomic.Int32
	b = brokers.New([]brokers.Broker{broker(1, "", &opened)})
	b.Close()
	b.Look(t.Context(), "orders", nil)
	assert.Zero(t, opened.Load())

	many := brokers.New([]brokers.Broker{{Name: "kafka", Open: func(context.Context, time.Duration) (transport.Transport, error) { return nil, errors.New("down") }}})
	var looking sync.WaitGroup
	for range 100 {
		looking.Go(func() { many.Look(t.Context(), "orders", []figures.Topic{}) })
	}
	many.Close()
	looking.Wait()
}
