package outbox_test

import (
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// A relay that was stopped while it held shards wakes up with leases that have expired and batches that another has sent.
// It must not hold the other up while it sleeps, nor take anything from it when it wakes. One that is killed must be
// missed for no longer than its leases last.
func TestStoppedAndKilledProcess(t *testing.T) {
	t.Parallel()
	f := newCluster(t, devtest.Pool(t), devtest.Schema(t))
	processes, other := newDeliveries(t), newLedger()
	theirs := func() int { return len(processes.all()) }
	writing := f.write(3)
	progress := func(what string, of func() int) {
		t.Helper()
		before := of()
		eventually(t, what, func() bool { return of() > before+100 })
	}
	first := processes.relay(f.schema, "")
	defer kill(first)
	progress("the first relay is at work", theirs)
	f.relayOn(f.pool, other)
	progress("both are at work", func() int { return min(theirs(), other.count()) })

	unpublished := func(committed []string) []string {
		missing, _ := other.compare(committed)
		published := map[string]bool{}
		for _, d := range processes.all() {
			published[d.payload] = true
		}
		return slices.DeleteFunc(missing, func(id string) bool { return published[id] })
	}
	// An event that is there now is published while the first relay sleeps, whichever shard it is in.
	caughtUp := func(what string) {
		t.Helper()
		committed := f.committed()
		eventually(t, what, func() bool { return len(unpublished(committed)) == 0 })
	}
	for range 2 {
		require.NoError(t, first.Process.Signal(syscall.SIGSTOP))
		caughtUp("the second relay has taken over")
		progress("and goes on", other.count)
		require.NoError(t, first.Process.Signal(syscall.SIGCONT))
		progress("the first one is back at work", theirs)
		caughtUp("nothing is left behind")
	}
	require.NoError(t, first.Process.Kill())
	caughtUp("the second relay has taken over for good")
	second := processes.relay(f.schema, "")
	defer kill(second)
	progress("a new one takes its share", theirs)
	require.NoError(t, second.Process.Signal(syscall.SIGSTOP))
	require.NoError(t, second.Process.Kill())
	progress("and is not missed", other.count)
	writing.end()

	eventually(t, "the outbox drains", func() bool { return f.rows() == 0 })
	assert.Empty(t, unpublished(f.committed()))
}
