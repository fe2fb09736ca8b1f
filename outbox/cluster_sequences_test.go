package outbox_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

// Sequences that were set back, as an import of data or a careless restore does, give out numbers below those that a
// relay has read and published; it must not take them for old ones.
func TestSequencesSetBack(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for _, source := range []outbox.Source{outbox.Table, outbox.WAL} {
		t.Run(source.String(), func(t *testing.T) {
			t.Parallel()
			testSequencesSetBack(t, source)
		})
	}
}

func testSequencesSetBack(t *testing.T, source outbox.Source) {
	var f *cluster
	if source == outbox.WAL {
		f = &cluster{logged(t)}
	} else {
		f = newCluster(t, devtest.Pool(t), devtest.Schema(t))
	}
	broker := newLedger()
	f.relayFrom(source, f.pool, broker)
	f.changes(1000)
	eventually(t, "the relay is at work", func() bool { return f.rows() == 0 && f.readsSlot(source) })
	setBack := func() {
		_, err := f.pool.Exec(t.Context(), `select setval(format('%I.%I', schemaname, sequencename)::regclass, 1, false)
			from pg_sequences where schemaname = $1 and sequencename like 'outbox\_seq\_%'`, f.schema)
		require.NoError(t, err)
	}
	setBack()
	f.changes(100) // idle since, so that each shard's next number is one that was used
	lost, _ := f.drained(broker)
	assert.Empty(t, lost)

	// Once more beside rows that wait, which then bear the same numbers, and under writers.
	broker.setDown(true)
	f.changes(300)
	setBack()
	writing := f.write(4)
	eventually(t, "writers are at work", func() bool { return writing.count() > 100 })
	setBack()
	broker.setDown(false)
	seen := writing.count()
	eventually(t, "they go on", func() bool { return writing.count() > seen+100 })
	writing.end()
	lost, others := f.drained(broker)
	assert.Empty(t, lost)
	assert.Empty(t, others)
}
