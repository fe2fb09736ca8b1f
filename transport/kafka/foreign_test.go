package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

// foreign is a topic with one partition, to which producers write that know nothing of Millrace, and a consumer whose handler
// notes each event in PostgreSQL.
type foreign struct {
	t       *testing.T
	pool    *pgxpool.Pool
	schema  string
	topic   string
	group   string
	client  *kgo.Client
	admin   *kadm.Client
	written int64
}

func newForeign(t *testing.T) *foreign {
	t.Helper()
	f := &foreign{t: t, pool: devtest.Pool(t), schema: devtest.Schema(t), topic: devtest.Topic(t)}
	f.group = strings.ReplaceAll(f.topic, ".", "-")
	require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
	require.NoError(t, claim.Migrate(t.Context(), f.pool, f.schema))
	_, err := f.pool.Exec(t.Context(), `create table `+f.schema+`.effect (event_id text, payload text)`)
	require.NoError(t, err)
	f.client, err = kgo.NewClient(kgo.SeedBrokers(brokers(t)...), kgo.UnknownTopicRetries(-1)) // brokers learn of a new topic one after another
	require.NoError(t, err)
	t.Cleanup(f.client.Close)
	f.admin = kadm.NewClient(f.client)
	_, err = f.admin.CreateTopic(t.Context(), 1, 1, nil, f.topic)
	require.NoError(t, err)
	return f
}

// write produces a record as kcat does.
func (f *foreign) write(r *kgo.Record) {
	f.t.Helper()
	r.Topic = f.topic
	require.NoError(f.t, f.client.ProduceSync(f.t.Context(), r).FirstErr())
	f.written++
}

// consume handles all that was written, under a claim, and returns when it is acked; stop ends the process.
func (f *foreign) consume(source transport.EventIDSource) (stop func()) {
	f.t.Helper()
	tr := connect(f.t, kafka.Config{Brokers: brokers(f.t), Consumer: kafka.ConsumerConfig{EventID: source}})
	guard, err := claim.New(claim.NewPostgresStore(f.pool, claim.Schema(f.schema)), claim.Config{Service: "labour", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(f.t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: wait}, watermill.NopLogger{})
	require.NoError(f.t, err)
	router.AddMiddleware(guard.Middleware)
	s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: f.group, Concurrency: 1})
	require.NoError(f.t, err)
	router.AddConsumerHandler(f.group, f.topic, guard.Subscriber(f.group, s), func(msg *message.Message) error {
		return pgtx.Queue(msg.Context(), `insert into `+f.schema+`.effect values ($1, $2)`, msg.UUID, string(msg.Payload))
	})
	devtest.Run(f.t, router)
	require.Eventually(f.t, func() bool { return f.committed() == f.written }, wait, tick, "all is acked")
	return func() {
		require.NoError(f.t, router.Close())
		require.NoError(f.t, tr.Close())
	}
}

// committed is up to where the consumer has acked; -1 where the brokers do not tell at this moment.
func (f *foreign) committed() int64 {
	offsets, err := f.admin.FetchOffsetsForTopics(f.t.Context(), f.group, f.topic)
	if o, ok := offsets.Lookup(f.topic, 0); ok && err == nil {
		return o.At
	}
	return -1
}

// again has everything delivered again, to a process that starts later.
func (f *foreign) again() {
	f.t.Helper()
	var offsets kadm.Offsets
	offsets.AddOffset(f.topic, 0, 0, -1)
	require.Eventually(f.t, func() bool { // the group has to be empty
		return f.admin.CommitAllOffsets(f.t.Context(), f.group, offsets) == nil && f.committed() == 0
	}, wait, tick)
}

// effects are the events by their IDs, "ID payload" for each time that one was handled.
func (f *foreign) effects() []string {
	rows, err := f.pool.Query(f.t.Context(), `select event_id || ' ' || payload from `+f.schema+`.effect order by payload, event_id`)
	require.NoError(f.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(f.t, err)
	return all
}

func (f *foreign) dead() []deadletter.Event {
	all, err := deadletter.List(f.t.Context(), f.pool, f.schema, deadletter.Listing{Selection: deadletter.Selection{States: []string{"dead"}}})
	require.NoError(f.t, err)
	return all
}

func (f *foreign) replay() {
	f.t.Helper()
	_, err := deadletter.Replay(f.t.Context(), f.pool, f.schema, deadletter.Selection{}, deadletter.By{Actor: "test"})
	require.NoError(f.t, err)
}

// kept counts the events that wait, or are dead.
func (f *foreign) kept() (n int) {
	require.NoError(f.t, f.pool.QueryRow(context.Background(), `select count(*) from `+f.schema+`.claim_failed`).Scan(&n))
	return n
}

func ceID(id string) []kgo.RecordHeader {
	return []kgo.RecordHeader{{Key: "ce_id", Value: []byte(id)}}
}

// TestForeignRecordHasOneEffect: each event of a foreign producer is handled once, however often Kafka delivers it, and where
// the producer sends an ID, however often it sends the event.
func TestForeignRecordHasOneEffect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source  transport.EventIDSource
		records []*kgo.Record
		want    []string // nil: an ID for each record
	}{
		"header": {
			kafka.EventIDFromHeader("ce_id"),
			[]*kgo.Record{{Value: []byte("a"), Headers: ceID("1")}, {Value: []byte("b"), Headers: ceID("2")}, {Value: []byte("b"), Headers: ceID("2")}, {Headers: ceID("3")}},
			[]string{"3 ", "1 a", "2 b"},
		},
		"json": {
			kafka.EventIDFromJSON("data.id"),
			[]*kgo.Record{{Value: []byte(`{"data": {"id": 7}}`)}, {Value: []byte(`{"data": {"id": "x"}}`)}, {Value: []byte(`{"data": {"id": 7}}`)}},
			[]string{`x {"data": {"id": "x"}}`, `7 {"data": {"id": 7}}`},
		},
		"offset": {
			kafka.EventIDFromOffset(),
			[]*kgo.Record{{Value: []byte("same")}, {Value: []byte("same")}, {}, {Value: []byte("1970"), Timestamp: time.UnixMilli(0)}, {Value: []byte("never"), Timestamp: time.UnixMilli(253402300799999)}},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newForeign(t)
			for _, r := range c.records {
				f.write(r)
			}
			f.consume(c.source)()
			first := f.effects()
			if c.want == nil {
				assert.Len(t, first, len(c.records))
			} else {
				assert.ElementsMatch(t, c.want, first)
			}
			f.again()
			f.consume(c.source)()
			assert.Equal(t, first, f.effects(), "after everything was delivered again")
			assert.Empty(t, f.dead())
		})
	}
}

// TestForeignRecordOfOurs: an event that Millrace's relay sends twice is one, also where foreign records go by their offsets.
func TestForeignRecordOfOurs(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	id := outbox.NewID()
	for range 2 {
		f.write(&kgo.Record{Value: []byte("ours"), Headers: []kgo.RecordHeader{{Key: "_watermill_message_uuid", Value: []byte(id)}}})
	}
	f.consume(kafka.EventIDFromOffset())
	assert.Equal(t, []string{id + " ours"}, f.effects())
}

// TestForeignRecordIsReplayedUnderItsID: records without an ID are dead letters that name the remedy. After it they are replayed
// under the IDs that they have then, so that what Kafka delivers again of them, before or after, is the same event.
func TestForeignRecordIsReplayedUnderItsID(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]transport.EventIDSource{
		"header": kafka.EventIDFromHeader("ce_id"), "json": kafka.EventIDFromJSON("id"), "offset": kafka.EventIDFromOffset(),
	} {
		for _, deliveredFirst := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " delivered again first ", deliveredFirst), func(t *testing.T) {
				t.Parallel()
				f := newForeign(t)
				f.write(&kgo.Record{Value: []byte(`{"id": 1}`), Headers: ceID("1")})
				f.write(&kgo.Record{Value: []byte(`{"id": 2}`), Headers: ceID("2")})
				f.consume(transport.EventIDSource{})()
				dead := f.dead()
				require.Len(t, dead, 2)
				assert.Contains(t, dead[0].Error, "no event ID")
				assert.Contains(t, dead[0].Error, "ConsumerConfig.EventID (kafka.consumer.event_id or kafka.consumers.NAME.event_id)")
				shown, err := deadletter.Show(t.Context(), f.pool, f.schema, dead[1].EventID, "")
				require.NoError(t, err)
				require.Len(t, shown, 1)
				assert.Equal(t, f.topic, shown[0].Origin["topic"])
				assert.Equal(t, "0 1", shown[0].Origin["partition"]+" "+shown[0].Origin["offset"])
				assert.Empty(t, f.effects())

				if deliveredFirst {
					f.again()
				}
				stop := f.consume(source)
				f.replay()
				require.Eventually(t, func() bool { return f.kept() == 0 }, wait, tick, "all are handled")
				stop()
				effects := f.effects()
				require.Len(t, effects, 2)
				assert.NotContains(t, fmt.Sprint(effects), "malformed")
				f.again()
				f.consume(source)()
				assert.Equal(t, effects, f.effects(), "after everything was delivered again")
				assert.Zero(t, f.kept())
			})
		}
	}
}

// TestForeignRecordWithTwinPayload: records without an ID that carry the same are two events all the same.
func TestForeignRecordWithTwinPayload(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.write(&kgo.Record{Value: []byte("same")})
	f.write(&kgo.Record{Value: []byte("same")})
	f.consume(transport.EventIDSource{})()
	require.Len(t, f.dead(), 2)
	f.again()
	f.consume(transport.EventIDSource{})()
	require.Len(t, f.dead(), 2, "redeliveries are absorbed")

	f.consume(kafka.EventIDFromOffset())
	f.replay()
	require.Eventually(t, func() bool { return f.kept() == 0 }, wait, tick)
	assert.Len(t, f.effects(), 2)
}

// TestForeignRecordWithAWrongPath: what is not where it should be makes dead letters with the reason, also when they are replayed
// without a remedy. The right path helps all of them but a tombstone, which has no payload to look into.
func TestForeignRecordWithAWrongPath(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.write(&kgo.Record{Value: []byte(`{"order": {"id": 1}}`), Headers: []kgo.RecordHeader{{Key: "_watermill_message_uuid", Value: []byte("ours")}}})
	f.write(&kgo.Record{Key: []byte("k")})
	stop := f.consume(kafka.EventIDFromJSON("order.number"))
	errors := func() (all []string) {
		for _, d := range f.dead() {
			all = append(all, d.Error)
		}
		return all
	}
	dead := errors()
	require.Len(t, dead, 2)
	assert.Contains(t, dead[0], `the payload has no "order.number": "order" has no field "number": set ConsumerConfig.EventID`)
	assert.Contains(t, dead[1], `the payload is empty, so it has no "order.number"`)
	f.replay()
	require.Eventually(t, func() bool { return len(f.dead()) == 2 && f.dead()[0].Replayed && f.dead()[1].Replayed }, wait, tick)
	assert.Equal(t, dead, errors())
	assert.Empty(t, f.effects())
	stop()

	f.consume(kafka.EventIDFromJSON("order.id"))
	f.replay()
	require.Eventually(t, func() bool { return len(f.dead()) == 1 && len(f.effects()) == 1 && f.kept() == 1 }, wait, tick)
	assert.Equal(t, []string{`1 {"order": {"id": 1}}`}, f.effects())
	assert.Contains(t, errors()[0], `the payload is empty, so it has no "order.id"`)
}

// TestForeignRecordKeepsItsOwnID: an ID that Millrace wrote is not lost to a wrong setting.
func TestForeignRecordKeepsItsOwnID(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.write(&kgo.Record{Value: []byte("ours"), Headers: []kgo.RecordHeader{{Key: "_watermill_message_uuid", Value: []byte("ours")}}})
	f.consume(kafka.EventIDFromHeader("ce_id"))()
	require.Len(t, f.dead(), 1)
	f.consume(transport.EventIDSource{})
	f.replay()
	require.Eventually(t, func() bool { return f.kept() == 0 }, wait, tick)
	assert.Equal(t, []string{"ours ours"}, f.effects())
}

// TestForeignRecordInDeadLetterTopic: the copy in a consumer's dead-letter topic carries the ID by which the consumer knew it.
func TestForeignRecordInDeadLetterTopic(t *testing.T) {
	t.Parallel()
	f, dead := newForeign(t), devtest.Topic(t)
	f.write(&kgo.Record{Value: []byte("a")})
	config := buries(dead, 1)
	config.Brokers, config.Consumer.EventID = brokers(t), kafka.EventIDFromOffset()
	tr := connect(t, config)
	_, messages := subscribe(t, tr, f.topic, transport.SubscriberConfig{Consumer: "c"})
	_, deads := subscribe(t, tr, dead, transport.SubscriberConfig{Consumer: "dead-letters"})
	msg := next(t, messages)
	id, err := uuid.Parse(msg.UUID)
	require.NoError(t, err)
	require.Equal(t, uuid.Version(7), id.Version())
	sec, _ := id.Time().UnixTime()
	assert.WithinDuration(t, time.Now(), time.Unix(sec, 0), time.Minute)
	msg.Nack()
	copied := next(t, deads)
	assert.Equal(t, msg.UUID, copied.UUID)
	copied.Ack()
}
