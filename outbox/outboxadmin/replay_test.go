package outboxadmin_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/memory"
)

var me = outboxadmin.By{Actor: "a test", Note: "because"}

// archive puts n events of each key into the archive, as relays do: many in one transaction, with one time.
func (f *fixture) archive(keys, n int) {
	f.exec(`create table {schema}.outbox_archive_before partition of {schema}.outbox_archive default`)
	for i := range n {
		f.exec(fmt.Sprintf(`insert into {schema}.outbox_archive (published_at, shard, seq, event_id, topic, key, headers, payload, created_at)
			select timestamptz '2026-01-01Z' + %d / 7 * interval '1 second', 0, %[1]d * %[2]d + k, 'e' || %[1]d || '-' || k, 'topic', 'k' || k, '{"a":"b"}', convert_to('%[1]d', 'UTF8'), now()
			from generate_series(1, %[2]d) k`, i, keys))
	}
}

// pending returns the events of the outbox by key, in their order.
func (f *fixture) pending() map[string][]string {
	rows, err := f.pool.Query(f.t.Context(), `select key, array_agg(event_id order by seq) from `+f.schema+`.outbox group by key`)
	require.NoError(f.t, err)
	found := map[string][]string{}
	var key string
	var ids []string
	_, err = pgx.ForEachRow(rows, []any{&key, &ids}, func() error { found[key] = ids; return nil })
	require.NoError(f.t, err)
	return found
}

// wanted is what pending returns after all events of archive were replayed.
func wanted(keys, n int) map[string][]string {
	want := map[string][]string{}
	for k := 1; k <= keys; k++ {
		for i := range n {
			key := fmt.Sprintf("k%d", k)
			want[key] = append(want[key], fmt.Sprintf("e%d-%d", i, k))
		}
	}
	return want
}

// Replayed events reach the consumer again, whose claim absorbs them. A consumer of another topic handles each of them once, in
// the order of its key, also after a second replay.
func TestReplayTakesEffectOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, claim.Migrate(t.Context(), f.pool, f.schema))
	f.exec(`create table {schema}.effect (n bigint generated always as identity, consumer text, key text, payload text)`)
	broker, err := memory.New(memory.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, broker.Close()) })
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	c, err := claim.New(claim.NewPostgresStore(f.pool, claim.Schema(f.schema)), claim.Config{Service: "labour"})
	require.NoError(t, err)
	var mu sync.Mutex
	delivered := map[string][]string{}
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			out, err := h(msg)
			if topic := message.SubscribeTopicFromCtx(msg.Context()); err == nil {
				mu.Lock()
				defer mu.Unlock()
				delivered[topic] = append(delivered[topic], fmt.Sprint(msg.UUID, msg.Metadata["mine"], transport.Key(msg)))
			}
			return out, err
		}
	}, c.Middleware)
	for _, topic := range []string{"topic", "again"} {
		subscriber, err := broker.Subscriber(transport.SubscriberConfig{Consumer: "consumer-of-" + topic, Ordered: true})
		require.NoError(t, err)
		router.AddConsumerHandler("consumer-of-"+topic, topic, subscriber, func(msg *message.Message) error {
			tx, _ := pgtx.From(msg.Context())
			_, err := tx.Exec(msg.Context(), `insert into `+f.schema+`.effect (consumer, key, payload) values ($1, $2, $3)`, topic, transport.Key(msg), string(msg.Payload))
			return err
		})
	}
	devtest.Run(t, router)
	publisher, err := broker.Publisher()
	require.NoError(t, err)
	f.relay(publisher, outbox.RelayConfig{Archive: 48 * time.Hour, PollInterval: 20 * time.Millisecond})

	const keys, each = 3, 20
	for i := range keys * each {
		require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
			msg := message.NewMessageWithContext(ctx, outbox.NewID(), fmt.Appendf(nil, "%03d", i))
			msg.Metadata["mine"] = "yes"
			transport.SetKey(msg, fmt.Sprintf("k%d", i%keys))
			return f.publisher.Publish("topic", msg)
		}))
	}
	deliveries := func(topic string) int {
		mu.Lock()
		defer mu.Unlock()
		return len(delivered[topic])
	}
	archived := func() (n int64) {
		topics, err := outboxadmin.CountArchived(t.Context(), f.pool, f.schema, outboxadmin.ArchiveSelection{})
		require.NoError(t, err)
		for _, a := range topics {
			n += a.Events
		}
		return n
	}
	eventually(t, "all are handled and archived", func() bool { return deliveries("topic") == keys*each && archived() == keys*each })

	for round := 1; round <= 2; round++ {
		for _, to := range []string{"", "again"} {
			p, err := outboxadmin.Replay(t.Context(), f.pool, f.schema, outboxadmin.ReplayConfig{ArchiveSelection: outboxadmin.ArchiveSelection{Topic: "topic"}, To: to}, me)
			require.NoError(t, err)
			assert.True(t, p.Finished)
			assert.EqualValues(t, keys*each, p.Events)
		}
		eventually(t, "all are delivered", func() bool {
			return deliveries("topic") == (round+1)*keys*each && deliveries("again") == round*keys*each && f.rows() == 0
		})
		assert.EqualValues(t, keys*each, archived(), "replayed events are not archived again")
	}
	once := map[string]int{}
	for _, topic := range []string{"topic", "again"} {
		rows, err := f.pool.Query(t.Context(), `select key, array_agg(payload order by n) from `+f.schema+`.effect where consumer = $1 group by key`, topic)
		require.NoError(t, err)
		var key string
		var payloads []string
		_, err = pgx.ForEachRow(rows, []any{&key, &payloads}, func() error {
			once[topic] += len(payloads)
			assert.True(t, slices.IsSorted(payloads), "%s of %s: %v", key, topic, payloads)
			return nil
		})
		require.NoError(t, err)
	}
	assert.Equal(t, map[string]int{"topic": keys * each, "again": keys * each}, once)
	mu.Lock()
	defer mu.Unlock()
	events := func(of []string) []string { return slices.Compact(slices.Sorted(slices.Values(of))) }
	assert.Equal(t, events(delivered["topic"]), events(delivered["again"]), "IDs, metadata and keys are the same")
}

// A replay that ends between any two transactions goes on where it was; several processes may continue it at once.
func TestReplayIsContinued(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const keys, each = 40, 50
	f.archive(keys, each)
	stop := errors.New("the process is killed")
	var id, steps int64
	for {
		ctx, cancel := context.WithCancelCause(t.Context())
		p, err := outboxadmin.Replay(ctx, f.pool, f.schema, outboxadmin.ReplayConfig{
			Resume: id, Rate: 1_000_000, MaxPending: 170, Progress: func(outboxadmin.ReplayProgress) { cancel(stop) },
		}, me)
		require.ErrorIs(t, err, stop)
		require.NotZero(t, p.ID)
		steps++
		if id = p.ID; p.Waiting {
			break
		}
	}
	assert.EqualValues(t, 3, steps, "the outbox holds more than 170")
	audit, err := outboxadmin.ListAudit(t.Context(), f.pool, f.schema, outboxadmin.AuditPage{})
	require.NoError(t, err)
	require.Len(t, audit, 1)
	assert.Equal(t, id, audit[0].ID)
	assert.EqualValues(t, 340, audit[0].Events)
	assert.True(t, audit[0].Unfinished)
	assert.Equal(t, "a test", audit[0].Actor)
	assert.Regexp(t, `{"note": "because", "until": "[^"]*"}`, string(audit[0].Detail))

	var processes sync.WaitGroup
	for range 4 {
		processes.Go(func() {
			p, err := outboxadmin.Replay(t.Context(), f.pool, f.schema, outboxadmin.ReplayConfig{Resume: id, Rate: 1000, MaxPending: 10_000}, me)
			assert.NoError(t, err)
			assert.EqualValues(t, keys*each, p.Events)
		})
	}
	processes.Wait()
	assert.Equal(t, wanted(keys, each), f.pending(), "each once, and in the order of its key")

	p, err := outboxadmin.Replay(t.Context(), f.pool, f.schema, outboxadmin.ReplayConfig{Resume: id}, me)
	require.NoError(t, err)
	assert.Equal(t, outboxadmin.ReplayProgress{ID: id, Events: keys * each, Finished: true}, p, "nothing is left to do")
	audit, err = outboxadmin.ListAudit(t.Context(), f.pool, f.schema, outboxadmin.AuditPage{})
	require.NoError(t, err)
	assert.False(t, audit[0].Unfinished)
	assert.EqualValues(t, keys*each, audit[0].Events)
}

// A replay takes what is selected, bounded by bytes too, and no faster than its rate.
func TestReplaySelects(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.archive(5, 28) // seven of each key in a second
	at := func(second int) time.Time { return time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC) }
	replay := func(c outboxadmin.ReplayConfig) map[string][]string {
		f.exec(`truncate {schema}.outbox`)
		p, err := outboxadmin.Replay(t.Context(), f.pool, f.schema, c, me)
		require.NoError(t, err)
		found, n := f.pending(), 0
		for _, ids := range found {
			n += len(ids)
		}
		assert.EqualValues(t, n, p.Events)
		return found
	}
	all := wanted(5, 28)
	assert.Equal(t, all, replay(outboxadmin.ReplayConfig{}))
	assert.Equal(t, map[string][]string{"k2": all["k2"]}, replay(outboxadmin.ReplayConfig{ArchiveSelection: outboxadmin.ArchiveSelection{Key: "k2", Topic: "topic"}}))
	for k := range maps.Keys(all) {
		all[k] = all[k][7:14]
	}
	assert.Equal(t, all, replay(outboxadmin.ReplayConfig{ArchiveSelection: outboxadmin.ArchiveSelection{Since: at(1), Until: at(2)}}))
	assert.Empty(t, replay(outboxadmin.ReplayConfig{ArchiveSelection: outboxadmin.ArchiveSelection{Topic: "no"}}))

	f.exec(`update {schema}.outbox_archive set payload = convert_to(repeat('x', 3000000), 'UTF8') where key = 'k1' and event_id in ('e0-1', 'e1-1', 'e2-1')`)
	var steps []int64
	took := time.Now()
	replay(outboxadmin.ReplayConfig{
		ArchiveSelection: outboxadmin.ArchiveSelection{Key: "k1"}, Rate: 80,
		Progress: func(p outboxadmin.ReplayProgress) { steps = append(steps, p.Events) },
	})
	assert.Equal(t, []int64{2, 22, 28, 28}, steps, "two of 3 MB, then a quarter of a second's events")
	assert.GreaterOrEqual(t, time.Since(took), 28*time.Second/80)

	topics, err := outboxadmin.CountArchived(t.Context(), f.pool, f.schema, outboxadmin.ArchiveSelection{Until: at(2)})
	require.NoError(t, err)
	require.Len(t, topics, 1)
	assert.EqualValues(t, 70, topics[0].Events)
	assert.Equal(t, at(1), topics[0].Last.UTC())
	report, err := outboxadmin.InspectArchive(t.Context(), f.pool, f.schema)
	require.NoError(t, err)
	assert.Equal(t, []string{"topic"}, report.Topics)
	assert.Equal(t, at(3), report.Last.UTC())
}

// refusing refuses the events of a topic until it is told otherwise.
type refusing struct {
	broker

	accepts atomic.Bool
}

func (r *refusing) Publish(topic string, msgs ...*message.Message) error {
	if topic == "refused" && !r.accepts.Load() {
		return transport.ErrRejected
	}
	return r.broker.Publish(topic, msgs...)
}

// Nor is a replayed event archived again when it failed in between.
func TestReplayedEventThatFailed(t *testing.T) {
	t.Parallel()
	f, events := newFixture(t), new(refusing)
	f.archive(1, 3)
	f.relay(events, outbox.RelayConfig{Archive: 48 * time.Hour, PollInterval: 20 * time.Millisecond})
	_, err := outboxadmin.Replay(t.Context(), f.pool, f.schema, outboxadmin.ReplayConfig{To: "refused"}, me)
	require.NoError(t, err)
	states := func() (states []string) {
		found, err := outboxadmin.List(t.Context(), f.pool, f.schema, outboxadmin.Listing{})
		require.NoError(t, err)
		for _, e := range found {
			states = append(states, e.EventID+" "+e.State)
		}
		return states
	}
	eventually(t, "the first event is dead", func() bool { return slices.Equal(states(), []string{"e0-1 dead", "e1-1 blocked", "e2-1 blocked"}) })
	events.accepts.Store(true)
	_, err = outboxadmin.Retry(t.Context(), f.pool, f.schema, outboxadmin.Selection{}, me)
	require.NoError(t, err)
	eventually(t, "they are published", func() bool { return events.Load() == 3 && f.rows() == 0 })
	topics, err := outboxadmin.CountArchived(t.Context(), f.pool, f.schema, outboxadmin.ArchiveSelection{})
	require.NoError(t, err)
	require.Len(t, topics, 1)
	assert.EqualValues(t, 3, topics[0].Events)
}

// Nor when it was discarded in between, and retried after all.
func TestReplayedEventThatWasDiscarded(t *testing.T) {
	t.Parallel()
	f, events := newFixture(t), new(broker)
	f.archive(1, 3)
	f.relay(events, outbox.RelayConfig{Archive: 48 * time.Hour, PollInterval: 20 * time.Millisecond})
	require.NoError(t, outboxadmin.PauseTopic(t.Context(), f.pool, f.schema, "topic", me))
	_, err := outboxadmin.Replay(t.Context(), f.pool, f.schema, outboxadmin.ReplayConfig{}, me)
	require.NoError(t, err)
	n, err := outboxadmin.DiscardPending(t.Context(), f.pool, f.schema, outboxadmin.PendingSelection{Topic: "topic"}, me)
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	require.NoError(t, outboxadmin.ResumeTopic(t.Context(), f.pool, f.schema, "topic", me))
	_, err = outboxadmin.Retry(t.Context(), f.pool, f.schema, outboxadmin.Selection{EventIDs: []string{"e0-1", "e1-1", "e2-1"}}, me)
	require.NoError(t, err)
	eventually(t, "they are published", func() bool { return events.Load() == 3 && f.rows() == 0 })
	topics, err := outboxadmin.CountArchived(t.Context(), f.pool, f.schema, outboxadmin.ArchiveSelection{})
	require.NoError(t, err)
	require.Len(t, topics, 1)
	assert.EqualValues(t, 3, topics[0].Events)
}

func TestReplayRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	now := time.Now()
	for want, c := range map[string]outboxadmin.ReplayConfig{
		"Since is ":                             {ArchiveSelection: outboxadmin.ArchiveSelection{Since: now, Until: now}},
		"Resume is 77: there is no such replay": {Resume: 77},
		"Resume is set, and so is a selection":  {Resume: 77, To: "x"},
		"Rate is -1":                            {Rate: -1},
		"MaxPending is -1":                      {MaxPending: -1},
	} {
		_, err := outboxadmin.Replay(t.Context(), f.pool, f.schema, c, me)
		require.ErrorContains(t, err, want)
	}
	_, err := outboxadmin.Replay(t.Context(), f.pool, f.schema, outboxadmin.ReplayConfig{}, outboxadmin.By{})
	require.ErrorContains(t, err, "By.Actor")

	f.archive(1, 1)
	operator := f.as("_o", func(r string) outboxadmin.GrantRoles { return outboxadmin.GrantRoles{Operator: r} })
	_, err = outboxadmin.Replay(t.Context(), operator.pool, f.schema, outboxadmin.ReplayConfig{}, me)
	require.ErrorContains(t, err, "a replay also needs the privileges of a writer")
	both := f.as("_b", func(r string) outboxadmin.GrantRoles { return outboxadmin.GrantRoles{Operator: r, Writer: r} })
	p, err := outboxadmin.Replay(t.Context(), both.pool, f.schema, outboxadmin.ReplayConfig{}, me)
	require.NoError(t, err)
	assert.EqualValues(t, 1, p.Events)
}
