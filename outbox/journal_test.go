package outbox_test

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// journal is what relays have written, by topic, and of all relays.
func (f *fixture) journal() (topics map[string]outboxadmin.FlowMinute, relays int64) {
	f.t.Helper()
	flows, err := outboxadmin.InspectFlows(f.t.Context(), f.pool, f.schema)
	require.NoError(f.t, err)
	topics = map[string]outboxadmin.FlowMinute{}
	for _, flow := range flows.Topics {
		sum := topics[flow.Topic]
		for _, m := range flow.Minutes {
			sum.Published, sum.Failed = sum.Published+m.Published, sum.Failed+m.Failed
		}
		topics[flow.Topic] = sum
	}
	for _, flow := range flows.Relays {
		for _, m := range flow.Minutes {
			relays += m.Published
		}
	}
	return topics, relays
}

// countingRelay writes what it counts soon.
func (f *fixture) countingRelay(r *recorder) (stop func()) {
	relay := f.newRelay(batchRecorder{r}, outbox.RelayConfig{PollInterval: 20 * time.Millisecond})
	outbox.WithJournal(relay, 20*time.Millisecond)
	return f.run(relay)
}

// Two relays count in memory. What they have counted is in the database soon, and when they stop: in a row for each minute, topic and relay,
// and not for each event.
func TestRelaysWriteWhatTheyCount(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	stopFirst, stopSecond := f.countingRelay(broker), f.countingRelay(broker)
	eventually(t, "they share the shards", func() bool { return assert.ObjectsAreEqual([]int{8, 8}, f.holders()) })
	broker.refuseAll(func(payload string) bool { return payload == "bad" })
	f.publishMany("bad", 1, func(int) string { return "bad" })
	for i := range 10 {
		f.publishMany("one", 40, func(n int) string { return strconv.Itoa(i*40 + n) })
		f.publishMany("two", 5, func(n int) string { return "k" + strconv.Itoa(i*5+n) })
	}
	eventually(t, "polls write it", func() bool {
		topics, _ := f.journal()
		return topics["bad"].Failed > 0 && topics["one"].Published == 400
	})
	broker.refuseAll(nil)
	eventually(t, "all are published", func() bool { return f.rows() == 0 })
	stopFirst()
	stopSecond()
	topics, relays := f.journal()
	assert.Equal(t, []int64{1, 400, 50}, []int64{topics["bad"].Published, topics["one"].Published, topics["two"].Published})
	assert.EqualValues(t, 451, relays)
	var rows, minutes int
	require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*), count(distinct minute) from `+f.schema+`.outbox_journal`).Scan(&rows, &minutes))
	assert.LessOrEqual(t, rows, 6*minutes, "of 451 events")
}

// The relay counts 100 topics one by one, and the others together. A name that no broker takes does not keep the rest from being written.
func TestManyTopicsAreCountedTogether(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	relay := f.newRelay(batchRecorder{broker}, outbox.RelayConfig{})
	outbox.WithJournal(relay, time.Hour)
	const topics = 130
	for i := range topics {
		f.publishMany("topic-"+strconv.Itoa(i), 1, strconv.Itoa)
	}
	_, err := f.pool.Exec(t.Context(), `update `+f.schema+`.outbox set topic = repeat('long', 1000) where topic = 'topic-7'`)
	require.NoError(t, err)
	stop := f.run(relay)
	eventually(t, "all are published", func() bool { return f.rows() == 0 })
	stop()
	written, relays := f.journal()
	assert.EqualValues(t, topics, relays)
	assert.LessOrEqual(t, len(written), 101)
	assert.GreaterOrEqual(t, written[""].Published, int64(topics-100))
}

// A journal that cannot be written holds nothing up, and nothing that was counted is lost.
func TestWithoutJournalTheRelayPublishes(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	_, err := f.pool.Exec(t.Context(), `alter table `+f.schema+`.outbox_journal rename to elsewhere`)
	require.NoError(t, err)
	f.countingRelay(broker)
	for i := range 3 {
		f.publish("k", strconv.Itoa(i))
		eventually(t, "it is published", func() bool { return f.rows() == 0 })
	}
	_, err = f.pool.Exec(t.Context(), `alter table `+f.schema+`.elsewhere rename to outbox_journal`)
	require.NoError(t, err)
	eventually(t, "it is counted", func() bool {
		topics, _ := f.journal()
		return topics[topic].Published == 3
	})
}

// What a killed relay has not written is lost, and nothing else: the counts are never more than what was published.
func TestJournalAfterAKill(t *testing.T) {
	t.Parallel()
	f, published := newFixture(t), newDeliveries(t)
	publish := func(n int) {
		before := len(published.all())
		f.publishMany(topic, n, strconv.Itoa)
		eventually(t, "it is published", func() bool { return len(published.all()) >= before+n && f.rows() == 0 })
	}
	first := published.relay(f.schema, countsOften)
	publish(100)
	eventually(t, "it is counted", func() bool { topics, _ := f.journal(); return topics[topic].Published >= 100 })
	publish(7)
	kill(first)
	killed := len(published.all())
	second := published.relay(f.schema, countsOften)
	publish(50)
	require.NoError(t, second.Process.Signal(syscall.SIGTERM))
	require.NoError(t, second.Wait())
	topics, relays := f.journal()
	all := len(published.all())
	assert.Equal(t, relays, topics[topic].Published)
	assert.GreaterOrEqual(t, topics[topic].Published, int64(100+all-killed))
	assert.LessOrEqual(t, topics[topic].Published, int64(all))
}

// Who writes drops what nobody reads any more, also when another relay does the same.
func TestJournalForgets(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	_, err := f.pool.Exec(t.Context(), `insert into `+f.schema+`.outbox_journal select date_trunc('minute', now()) - n * interval '1 minute', 'old', gen_random_uuid(), 1, 0 from generate_series(55, 1055) n`)
	require.NoError(t, err)
	f.countingRelay(broker)
	f.countingRelay(broker)
	f.publishMany(topic, 100, strconv.Itoa)
	eventually(t, "it is published", func() bool { return f.rows() == 0 })
	eventually(t, "the old minutes are gone, and others are not", func() bool {
		var old, newer int
		require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) filter (where minute < date_trunc('minute', now()) - interval '1 hour'), count(*) from `+f.schema+`.outbox_journal where topic = 'old'`).Scan(&old, &newer))
		f.publish("k", "one more")
		return old == 0 && newer > 0
	})
}
