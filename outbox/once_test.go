package outbox_test

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// onceFixture is an outbox whose relays are processes that publish to Kafka.
type onceFixture struct {
	*fixture
	brokers []string
	topic   string
	pipes   *deliveries
	sent    int
	repeats func(n int) bool // events that may come twice; nil: none
	source  string           // fromWAL, or ""
	alone   *onceServers     // nil: tests share the servers
}

const (
	onceKeys = 20
	patience = 5 * time.Minute // takeovers at a Kafka that shares a busy machine take long
)

func newOnceFixture(t *testing.T) *onceFixture {
	f := &onceFixture{fixture: newFixture(t), brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers(), topic: devtest.Topic(t), pipes: newDeliveries(t)}
	f.sentTable()
	return f
}

// sentTable makes a table that gets the number of each event in the event's transaction.
func (f *onceFixture) sentTable() {
	_, err := f.pool.Exec(f.t.Context(), `create table `+f.schema+`.sent (n int primary key)`)
	require.NoError(f.t, err)
}

func (f *onceFixture) relay(d outbox.Delivery) *exec.Cmd { return f.start(f.option(d)) }

// option is that of a relay process.
func (f *onceFixture) option(d outbox.Delivery) string {
	how, err := d.MarshalText()
	require.NoError(f.t, err)
	return f.source + string(how) + toKafka + strings.Join(f.brokers, ",")
}

func (f *onceFixture) start(option string) *exec.Cmd {
	cmd := f.pipes.relay(f.schema, option)
	f.t.Cleanup(func() { kill(cmd) })
	return cmd
}

// add commits n events. Their payloads are numbers, which ascend.
func (f *onceFixture) add(n int) {
	require.NoError(f.t, pgtx.Run(f.t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		msgs := make([]*message.Message, n)
		for i := range msgs {
			msgs[i] = newMessage(ctx, fmt.Sprint("key ", f.sent%onceKeys), fmt.Sprint(f.sent))
			f.sent++
		}
		if _, err := tx.Exec(ctx, `insert into `+f.schema+`.sent select generate_series($1::int, $2)`, f.sent-n, f.sent-1); err != nil {
			return err
		}
		return f.publisher.Publish(f.topic, msgs...)
	}))
}

// left waits until at most n rows are left.
func (f *onceFixture) left(n int) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.rows() <= n || f.pardoned() && f.rows() <= n }, patience, 20*time.Millisecond, "more than %d rows are left", n)
}

// onceRecord is a record of the topic.
type onceRecord struct{ key, value, where string }

// onceVerdict is what is wrong with the records of the topic.
type onceVerdict struct{ twice, late, lost, unknown int }

// judge counts events that come twice, behind a later one of their key, or not at all, and records that are no events. An event that the
// database has forgotten need not come.
func (f *onceFixture) judge(records []onceRecord) (v onceVerdict) {
	seen, last := map[int]onceRecord{}, map[string]int{}
	for _, r := range records {
		n, err := strconv.Atoi(r.value)
		if err != nil || n >= f.sent || r.key != fmt.Sprint("key ", n%onceKeys) {
			v.unknown++
			continue
		}
		first, again := seen[n]
		switch {
		case again && f.repeats != nil && f.repeats(n):
		case again:
			if v.twice++; v.twice <= 10 {
				f.t.Logf("event %d of %s: %s, and %s", n, r.key, first.where, r.where)
			}
		case n < last[r.key]:
			if v.late++; v.late <= 10 {
				f.t.Logf("event %d of %s comes behind %d: %s", n, r.key, last[r.key], r.where)
			}
		}
		seen[n], last[r.key] = r, max(last[r.key], n)
	}
	rows, err := f.pool.Query(f.t.Context(), `select n from `+f.schema+`.sent`)
	require.NoError(f.t, err)
	committed, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(f.t, err)
	for _, n := range committed {
		if _, came := seen[n]; !came {
			v.lost++
		}
	}
	return v
}

// read judges what a reader of committed records gets. It is franz-go's, so it shares no code with relays. No row may be left.
func (f *onceFixture) read() onceVerdict {
	f.t.Helper()
	var records []onceRecord
	for _, r := range f.records(f.topic, (*kadm.Client).ListEndOffsets) {
		records = append(records, onceRecord{string(r.Key), string(r.Value), fmt.Sprintf("offset %d of partition %d, producer %d, epoch %d, written %s",
			r.Offset, r.Partition, r.ProducerID, r.ProducerEpoch, r.Timestamp)})
	}
	return f.judge(records)
}

// records reads the committed records of a topic up to the ends that its partitions have now. Those of ListEndOffsets lie behind open transactions:
// records waits until these have ended.
func (f *onceFixture) records(topic string, ends func(*kadm.Client, context.Context, ...string) (kadm.ListedOffsets, error)) (records []*kgo.Record) {
	f.t.Helper()
	reader := f.kafka(kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	defer reader.Close()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	found, err := ends(kadm.NewClient(reader), ctx, topic)
	require.NoError(f.t, err)
	left, next := map[int32]int64{}, map[int32]int64{}
	found.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			left[end.Partition] = end.Offset
		}
	})
	for len(left) > 0 {
		fetches := reader.PollFetches(ctx)
		require.NoError(f.t, ctx.Err(), "partitions %v are not at their ends: a transaction is open", left)
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset < next[r.Partition] { // the reader, which has started anew, returns it again
				return
			}
			next[r.Partition] = r.Offset + 1
			if end, ok := left[r.Partition]; ok && r.Offset+1 >= end {
				delete(left, r.Partition)
			}
			if !r.Attrs.IsControl() {
				records = append(records, r)
			}
		})
	}
	return records
}

// TestPublishedTwiceWithoutProgress is the control: relays that publish at least once do so in the same trouble.
func TestPublishedTwiceWithoutProgress(t *testing.T) {
	t.Parallel()
	f := newOnceFixture(t)
	relay := f.relay(outbox.AtLeastOnce)
	for range 100 {
		f.add(300)
		f.left(250)
		kill(relay)
		relay = f.relay(outbox.AtLeastOnce)
		f.left(0)
		v := f.read()
		require.Zero(t, v.lost)
		if v.twice > 0 {
			return
		}
	}
	t.Fatal("no event came twice")
}

// TestDeliveryChanges: a fleet under load changes from at least once to transactional, and back. Each relay is killed while it publishes, and
// another one with the new setting takes its place. In each phase a relay is stopped until others have its shards, and goes on. Nothing is lost
// or overtaken. Events come twice at most while a relay that publishes at least once runs.
func TestDeliveryChanges(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	f := newOnceFixture(t)
	relays := make([]*exec.Cmd, 3)
	for i := range relays {
		relays[i] = f.relay(outbox.AtLeastOnce)
	}
	change := func(to outbox.Delivery) {
		for i := range relays {
			if i == len(relays)-1 { // the last one of the old setting goes on beside the new ones
				require.NoError(t, relays[i].Process.Signal(syscall.SIGSTOP))
				f.add(150)
				f.left(0)
				require.NoError(t, relays[i].Process.Signal(syscall.SIGCONT))
			}
			before := f.rows()
			f.add(150)
			f.left(before + 100)
			kill(relays[i])
			relays[i] = f.relay(to)
		}
		f.left(0)
	}
	change(outbox.Transactional)
	from := f.sent
	change(outbox.Transactional)
	to := f.sent
	change(outbox.AtLeastOnce)
	f.add(150)
	f.left(0)
	f.repeats = func(n int) bool { return n < from || n >= to }
	require.Equal(t, onceVerdict{}, f.read())
}

// TestTransactionalNeedsKafka: where the publisher has no transactions, New says so.
func TestTransactionalNeedsKafka(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := outbox.NewRelay(f.pool, newRecorder(), outbox.RelayConfig{Schema: f.schema, Delivery: outbox.Transactional})
	require.ErrorContains(t, err, "want transport.PlainPublisher of the Kafka transport, or AtLeastOnce")
	_, err = outbox.NewRelay(f.pool, newRecorder(), outbox.RelayConfig{Schema: f.schema, Delivery: 7})
	require.ErrorContains(t, err, "RelayConfig.Delivery is Delivery(7): want AtLeastOnce or Transactional")
	_, err = outbox.NewRelay(f.pool, transactionalRecorder{}, outbox.RelayConfig{Schema: f.schema, Delivery: outbox.Transactional, MaxInFlight: 20_001})
	require.ErrorContains(t, err, "RelayConfig.MaxInFlight is 20001: want at most 20000 where Delivery is Transactional")
}

// TestOneEventIsRefused: the broker refuses a batch because of one event, and does not say which. The others are published, but
// for those of its key.
func TestOneEventIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	broker := transactionalRecorder{newRecorder()}
	for i := range 40 {
		f.publish(fmt.Sprint("key ", i%10), fmt.Sprint("event ", i))
	}
	broker.refuseAll(func(payload string) bool { return payload == "event 13" })
	f.run(f.newRelay(broker, outbox.RelayConfig{Delivery: outbox.Transactional}))
	eventually(t, "the others are published", func() bool { return broker.count() == 37 })
	eventually(t, "three wait", func() bool { return len(f.failed("key 3")) == 3 })
	require.Equal(t, "event 13 dead 1", f.failed("key 3")[0])
	require.Equal(t, []string{"event 3"}, broker.of("key 3"))
}

// TestOneEventIsOutOfReach: the partition of one key has no leader. The events of the other keys are published, and those of this
// one wait in their order.
func TestOneEventIsOutOfReach(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	broker := transactionalRecorder{newRecorder()}
	for i := range 40 {
		f.publish(fmt.Sprint("key ", i%10), fmt.Sprint("event ", i))
	}
	broker.leaveOut(func(payload string) bool { return payload == "event 13" })
	f.run(f.newRelay(broker, outbox.RelayConfig{Delivery: outbox.Transactional}))
	eventually(t, "the others are published", func() bool { return broker.count() == 37 })
	require.Equal(t, []string{"event 3"}, broker.of("key 3"))
	require.Empty(t, f.failed("key 3"), "an outage is no event's fault")
	broker.leaveOut(nil)
	eventually(t, "all are published", func() bool { return broker.count() == 40 })
	require.Equal(t, []string{"event 3", "event 13", "event 23", "event 33"}, broker.of("key 3"))
}

// An event that makes the publisher panic keeps no other from being published.
func TestOneEventPanics(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), transactionalRecorder{newRecorder()}
	f.publishMany(topic, 40, func(i int) string { return "event " + strconv.Itoa(i) })
	broker.leaveOut(func(payload string) bool {
		if payload == "event 13" {
			panic("no such thing")
		}
		return false
	})
	f.run(f.newRelay(broker, outbox.RelayConfig{Delivery: outbox.Transactional}))
	eventually(t, "the others are published", func() bool { return broker.count() >= 37 })
	broker.leaveOut(nil)
	eventually(t, "all are published", func() bool { return f.rows() == 0 })
	require.Equal(t, 40, broker.count())
}

// transactionalRecorder is a broker with transactions. It refuses all messages of a transaction because of one.
type transactionalRecorder struct{ *recorder }

func (r transactionalRecorder) Transactions(string, int) transport.Transactions {
	return &recordedTransactions{recorder: r.recorder}
}

type recordedTransactions struct {
	recorder *recorder
	note     []byte
}

func (x *recordedTransactions) Take(context.Context) ([]byte, error) { return x.note, nil }

func (x *recordedTransactions) Publish(_ context.Context, topic string, msgs []*message.Message, note []byte) []error {
	results := make([]error, len(msgs))
	x.recorder.mu.Lock()
	outOfReach := x.recorder.outOfReach
	refused := slices.ContainsFunc(msgs, func(m *message.Message) bool { return x.recorder.refuse != nil && x.recorder.refuse(string(m.Payload)) })
	x.recorder.mu.Unlock()
	if outOfReach != nil && slices.ContainsFunc(msgs, func(m *message.Message) bool { return outOfReach(string(m.Payload)) }) {
		for i, m := range msgs { // nothing is sent
			if results[i] = transport.ErrNotSent; outOfReach(string(m.Payload)) {
				results[i] = transport.ErrUnavailable
			}
		}
		return results
	}
	for i, m := range msgs {
		if refused {
			results[i] = transport.ErrRejected
		} else {
			results[i] = x.recorder.Publish(topic, m)
		}
	}
	if !refused {
		x.note = note
	}
	return results
}

func (x *recordedTransactions) Close() error { return nil }
