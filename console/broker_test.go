package console_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/console"
	"github.com/millrace-go/millrace/transport"
)

// told is a broker that says what a test wants.
type told struct {
	transport.Transport
	opened, closed atomic.Int32
	down           atomic.Bool
	stuck          chan struct{} // Ping waits for it, if it is not nil
	lag            map[string]int64
}

func (*told) Name() string { return "kafka" }

func (b *told) Close() error {
	b.closed.Add(1)
	return nil
}

func (b *told) Ping(ctx context.Context) error {
	if b.stuck != nil {
		select {
		case <-b.stuck:
		case <-ctx.Done():
		}
	}
	if b.down.Load() {
		return errors.New("connection refused")
	}
	return ctx.Err()
}

func (b *told) Inspect(_ context.Context, topic, consumer string) (transport.Inspection, error) {
	lag, known := b.lag[topic+" "+consumer]
	return transport.Inspection{Topic: topic != "gone", Consumer: known, Lag: lag}, nil
}

func (b *told) of(c *console.Config) {
	c.Brokers = []console.Broker{{
		Name: "kafka", Address: "kafka-1:9092, kafka-2:9092",
		Open: func(context.Context, time.Duration) (transport.Transport, error) {
			b.opened.Add(1)
			return b, nil
		},
		Subscriptions: func() []console.Subscription {
			return []console.Subscription{{Consumer: "shop.book", Topic: "order.placed"}, {Consumer: "shop.bill", Topic: "order.placed"}, {Consumer: "shop.ship", Topic: "parcel.packed"}, {Consumer: "shop.new", Topic: "stock"}, {Consumer: "shop.x", Topic: "gone"}}
		},
	}}
}

// The broker is a stage between relays and consumers: where it is, whether it answers, and what consumers have not read. Open pages ask it
// once.
func TestTheBrokerIsAStage(t *testing.T) {
	t.Parallel()
	b := &told{lag: map[string]int64{"order.placed shop.book": 312, "order.placed shop.bill": 7, "parcel.packed shop.ship": 1046, "invoice.created ": -1}}
	s := open(t, console.Look, b.of)
	s.pending("invoice.created", "p1")
	var page string
	require.Eventually(t, func() bool {
		page = text(s.get(http.StatusOK, "/"))
		return strings.Contains(page, "unread by")
	}, wait, pause)
	for _, what := range []string{
		"Kafka 1,358 unread", "at kafka-1:9092, kafka-2:9092", "parcel.packed 1,046 unread by shop.ship", "order.placed 312 unread by shop.book",
		"stock – shop.new not subscribed", "gone – the topic is missing", "invoice.created – exists",
	} {
		assert.Contains(t, page, what)
	}
	assert.Less(t, strings.Index(page, "Relays"), strings.Index(page, "Kafka 1,358 unread"))
	assert.Less(t, strings.Index(page, "Kafka 1,358 unread"), strings.Index(page, "No consumer has claimed"))
	var looking sync.WaitGroup
	for range 50 {
		looking.Go(func() { s.get(http.StatusOK, "/") })
	}
	looking.Wait()
	assert.LessOrEqual(t, b.opened.Load(), int32(2), "all sessions share one answer, which is kept for 15 s")
	s.page.Close()
	assert.Equal(t, b.opened.Load(), b.closed.Load())
}

// A broker that does not answer is named as such, and holds up no page.
func TestABrokerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	down := &told{}
	down.down.Store(true)
	s := open(t, console.Look, down.of)
	require.Eventually(t, func() bool {
		page := text(s.get(http.StatusOK, "/"))
		return strings.Contains(page, "Kafka no answer It does not answer. connection refused")
	}, wait, pause)
	page := text(s.get(http.StatusOK, "/"))
	assert.Contains(t, page, "The broker does not answer. Events wait until it does")
	assert.NotContains(t, page, "Everything flows.")

	hangs := &told{stuck: make(chan struct{})}
	s = open(t, console.Look, hangs.of)
	page = text(s.get(http.StatusOK, "/"))
	assert.Contains(t, page, "It was not asked yet.")
	close(hangs.stuck)
	require.Eventually(t, func() bool {
		return strings.Contains(text(s.get(http.StatusOK, "/")), "4 topics at the broker have trouble.")
	}, wait, pause)

	// Without a broker in the configuration the page says nothing about one.
	s = open(t, console.Look)
	assert.NotContains(t, text(s.get(http.StatusOK, "/")), "It was not asked yet.")
	err := console.Config{Brokers: []console.Broker{{Name: "kafka"}}}.WithDefaults().Validate()
	assert.ErrorContains(t, err, "Config.Brokers[0] has no Name, or no Open")
	err = console.Config{Brokers: make([]console.Broker, 3)}.WithDefaults().Validate()
	assert.ErrorContains(t, err, "Config.Brokers has 3 brokers: want 2 at most")
}
