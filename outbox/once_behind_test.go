package outbox_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox/internal/progress"
)

// onceNotes are the notes of an outbox: what each shard's key has as its progress.
type onceNotes map[string][]byte

// noteTopic is the topic of the notes.
func (f *onceFixture) noteTopic() string {
	var database, server string
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `select current_database(), system_identifier::text from pg_control_system()`).Scan(&database, &server))
	return "millrace.progress." + progress.Name(database, f.schema, server)
}

func (f *onceFixture) kafka(options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(f.brokers...)}, options...)...)
	require.NoError(f.t, err)
	return client
}

// notes returns the newest committed note of each shard.
func (f *onceFixture) notes() onceNotes {
	notes := onceNotes{}
	for _, r := range f.records(f.noteTopic(), (*kadm.Client).ListCommittedOffsets) {
		notes[string(r.Key)] = r.Value
	}
	return notes
}

// setBack makes earlier notes the newest ones. A shard that had none keeps its own.
func (f *onceFixture) setBack(notes onceNotes) {
	client := f.kafka(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer client.Close()
	for shard, note := range notes {
		number, err := strconv.Atoi(shard)
		require.NoError(f.t, err)
		record := &kgo.Record{Topic: f.noteTopic(), Partition: int32(number % 16), Key: []byte(shard), Value: note}
		require.NoError(f.t, client.ProduceSync(f.t.Context(), record).FirstErr())
	}
}

// published lists the events that have a row and are in the notes.
func (f *onceFixture) published(notes onceNotes) map[int]bool {
	known := map[progress.ID]bool{}
	for shard, note := range notes {
		ids, err := progress.Decode(note)
		require.NoError(f.t, err, "shard %s", shard)
		for _, id := range ids {
			known[id] = true
		}
	}
	published := map[int]bool{}
	rows, err := f.pool.Query(f.t.Context(), `select seq, event_id, convert_from(payload, 'UTF8')::int from `+f.schema+`.outbox`)
	require.NoError(f.t, err)
	var seq int64
	var event string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&seq, &event, &n}, func() error {
		if known[progress.IDOf(seq, event)] {
			published[n] = true
		}
		return nil
	})
	require.NoError(f.t, err)
	return published
}

// heldUp kills a relay that has published all events and could delete none of their rows. It returns the notes.
func (f *onceFixture) heldUp() onceNotes {
	ctx := f.t.Context()
	lock, err := f.pool.Begin(ctx)
	require.NoError(f.t, err)
	_, err = lock.Exec(ctx, `lock table `+f.schema+`.outbox in share mode`)
	require.NoError(f.t, err)
	relay := f.once()
	require.Eventually(f.t, func() bool { return len(f.published(f.notes())) == f.rows() }, patience, 500*time.Millisecond, "all events are published")
	kill(relay)
	// A delete that still waits for the lock would go on after it.
	eventually(f.t, "the relay's connections have ended", func() (all bool) {
		err := f.pool.QueryRow(ctx, `select coalesce(bool_and(pg_terminate_backend(pid, 10000)), true) from pg_stat_activity where application_name = $1`, f.schema).Scan(&all)
		return assert.NoError(f.t, err) && all
	})
	require.NoError(f.t, lock.Rollback(ctx))
	return f.notes()
}

// comeAgain has a relay publish the rest. It returns the events that came twice, each of which must be one of the given ones.
func (f *onceFixture) comeAgain(may func(n int) bool) map[int]bool {
	f.once()
	f.left(0)
	again := map[int]bool{}
	f.repeats = func(n int) bool {
		again[n] = true
		return may(n)
	}
	assert.Equal(f.t, onceVerdict{}, f.read())
	return again
}

// TestProgressIsLost: the topic of the notes is deleted while rows of published events are left. These events come twice, and none is lost.
func TestProgressIsLost(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	f := newOnceFixture(t)
	f.add(2 * onceKeys)
	published := f.published(f.heldUp())
	require.Len(t, published, 2*onceKeys)
	client := f.kafka()
	defer client.Close()
	deleted, err := kadm.NewClient(client).DeleteTopics(t.Context(), f.noteTopic())
	require.NoError(t, err)
	require.NoError(t, deleted.Error())
	f.add(2 * onceKeys)
	require.Equal(t, published, f.comeAgain(func(n int) bool { return published[n] }))
}

// TestProgressIsBehind: an older note is the newest one again, as after an unclean election. Published events that are not in it come twice if
// they have rows, and none is lost.
func TestProgressIsBehind(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	f := newOnceFixture(t)
	f.add(2 * onceKeys)
	older := f.heldUp()
	f.add(2 * onceKeys)
	newest := f.heldUp()
	known, missing := f.published(older), f.published(newest)
	require.Len(t, known, 2*onceKeys)
	require.Len(t, missing, 4*onceKeys)
	for n := range known {
		delete(missing, n)
	}
	f.setBack(older)
	require.Equal(t, known, f.published(f.notes()), fmt.Sprint(f.noteTopic(), " is behind"))
	f.add(2 * onceKeys)
	require.Equal(t, missing, f.comeAgain(func(n int) bool { return missing[n] }))
}
