package outbox_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

// A relay that took the death of its connections for the end of its work, or trusted numbers and memories from before,
// would leave committed events behind after a crash of the server, or publish what recovery undid.
func TestServerCrash(t *testing.T) {
	t.Parallel()
	for _, source := range []outbox.Source{outbox.Table, outbox.WAL} {
		t.Run(source.String(), func(t *testing.T) {
			t.Parallel()
			testServerCrash(t, source)
		})
	}
}

func testServerCrash(t *testing.T, source outbox.Source) {
	server := devtest.Postgres(t, devstack.ServerConfig{})
	f := newCluster(t, devtest.PoolOn(t, server.DSN()), "server_crash")
	broker := newLedger()
	f.relayFrom(source, devtest.PoolOn(t, server.DSN()), broker)
	var acked []string
	rounds := 3
	if source == outbox.WAL {
		rounds = 1
	}
	for range rounds {
		writing := f.write(6)
		published := broker.count()
		eventually(t, "writers and relay are at work", func() bool { return writing.count() > 200 && broker.count() > published+50 })
		require.NoError(t, server.Crash(t.Context()))
		writing.running.Wait()
		acked = append(acked, writing.acked...)
		require.NoError(t, server.Start(t.Context()))
		f.pool.Reset()
	}
	lost, vanished := f.drained(broker)
	assert.Empty(t, lost, "committed events that were not published")
	assert.Empty(t, vanished, "published events that are not committed")
	committed := f.committed()
	slices.Sort(committed)
	for _, id := range acked {
		_, found := slices.BinarySearch(committed, id)
		require.True(t, found, "the server lost an acknowledged commit")
	}
}
