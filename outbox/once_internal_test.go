package outbox

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/observe"
	"github.com/millrace-go/millrace/outbox/internal/progress"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/transport"
)

// The progress of a shard with the largest MaxInFlight fits into a note, and that of the default is far below.
func TestProgressFitsIntoNote(t *testing.T) {
	t.Parallel()
	size := func(inFlight int) int { return len(progress.Encode(make([]progress.ID, fullProgress(inFlight)))) }
	require.LessOrEqual(t, size(maxTransactionalInFlight), transport.MaxNote)
	require.LessOrEqual(t, size(RelayConfig{}.WithDefaults().MaxInFlight), transport.MaxNote/10)
}

// jointBroker has transactions with several topics. It notes the topics of each transaction that it commits.
type jointBroker struct {
	began   chan struct{} // a transaction
	goOn    chan struct{}
	refused string // a topic

	mu        sync.Mutex
	committed [][]string
}

type jointPublisher struct {
	message.Publisher
	broker *jointBroker
}

func (p jointPublisher) Transactions(string, int) transport.Transactions { return p.broker }

func (b *jointBroker) Take(context.Context) ([]byte, error) { return nil, nil }
func (b *jointBroker) Close() error                         { return nil }

func (b *jointBroker) Publish(ctx context.Context, topic string, msgs []*message.Message, note []byte) []error {
	return b.PublishTo(ctx, slices.Repeat([]string{topic}, len(msgs)), msgs, note)
}

func (b *jointBroker) PublishTo(_ context.Context, topics []string, _ []*message.Message, _ []byte) []error {
	b.began <- struct{}{}
	<-b.goOn
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.Contains(topics, b.refused) {
		return slices.Repeat([]error{transport.ErrUnavailable}, len(topics))
	}
	b.committed = append(b.committed, topics)
	return make([]error, len(topics))
}

// Batches of several topics that come while a transaction is under way share the next one. If it fails because of one topic, the
// others are published without that.
func TestTopicsShareTransaction(t *testing.T) {
	t.Parallel()
	for name, control := range map[string]struct {
		refused string
		want    [][]string // sorted
	}{
		"all":         {"", [][]string{{"first"}, {"a", "b", "b", "c"}}},
		"one refused": {"b", [][]string{{"first"}, {"a"}, {"c"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := &jointBroker{began: make(chan struct{}), goOn: make(chan struct{}), refused: control.refused}
			cfg := RelayConfig{}.WithDefaults()
			observer, err := observe.New(cfg.MeterProvider, cfg.TracerProvider, cfg.Propagator, cfg.Database)
			require.NoError(t, err)
			o := &once{relay: &Relay{cfg: cfg, observer: observer}, publisher: jointPublisher{broker: broker}, shards: map[*onceShard]struct{}{}}
			s := o.begin(0)
			var publishing sync.WaitGroup
			results := map[string][]error{}
			seq := int64(0)
			publish := func(topic string, rows int) {
				p := step.Publish{Queue: topic, To: topic, Deadline: time.Now().Add(time.Hour)}
				for range rows {
					seq++
					p.Rows = append(p.Rows, &step.Row{Seq: seq, EventID: fmt.Sprint(seq), Topic: topic, Read: time.Now().Add(time.Hour)})
				}
				publishing.Go(func() {
					got := o.publish(t.Context(), s, p)
					broker.mu.Lock()
					defer broker.mu.Unlock()
					results[topic] = got
				})
			}
			publish("first", 1)
			<-broker.began
			for topic, rows := range map[string]int{"a": 1, "b": 2, "c": 1} {
				publish(topic, rows)
			}
			require.Eventually(t, func() bool { return s.line.Waiting() == 3 }, 10*time.Second, time.Millisecond)
			stop := make(chan struct{})
			var going sync.WaitGroup
			going.Go(func() {
				for {
					select {
					case broker.goOn <- struct{}{}:
					case <-broker.began:
					case <-stop:
						return
					}
				}
			})
			publishing.Wait()
			close(stop)
			going.Wait()
			for topic, errs := range results {
				for _, err := range errs {
					require.Equal(t, topic == control.refused, err != nil, topic)
				}
			}
			for _, topics := range broker.committed {
				slices.Sort(topics)
			}
			if control.refused != "" {
				slices.SortFunc(broker.committed[1:], slices.Compare)
			}
			require.Equal(t, control.want, broker.committed)
		})
	}
}

type panickingPublisher struct{ message.Publisher }

func (panickingPublisher) Transactions(string, int) transport.Transactions {
	return panickingTransactions{}
}

// panickingTransactions panic at each transaction.
type panickingTransactions struct{ transport.Transactions }

func (panickingTransactions) Take(context.Context) ([]byte, error) { return nil, nil }

func (panickingTransactions) Publish(context.Context, string, []*message.Message, []byte) []error {
	panic("it is closed")
}

// A batch that panics is sent in halves, and each of these panics again.
func TestPanicsOfATransactionAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	cfg := RelayConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}.WithDefaults()
	observer, err := observe.New(cfg.MeterProvider, cfg.TracerProvider, cfg.Propagator, cfg.Database)
	require.NoError(t, err)
	o := &once{relay: &Relay{cfg: cfg, observer: observer}, publisher: panickingPublisher{}, shards: map[*onceShard]struct{}{}}
	s := o.begin(0)
	p := step.Publish{Queue: "t", To: "t", Deadline: time.Now().Add(time.Hour)}
	for i := range 20 {
		p.Rows = append(p.Rows, &step.Row{Seq: int64(i + 1), EventID: fmt.Sprint(i), Topic: "t", Read: time.Now().Add(time.Hour)})
	}
	for _, err := range o.publish(t.Context(), s, p) {
		require.ErrorIs(t, err, errPanicked)
	}
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("stack=")))
}
