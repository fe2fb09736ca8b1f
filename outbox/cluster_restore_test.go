package outbox_test

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
)

// A dump holds rows, sequences and the leases of relays that live elsewhere. A position of a relay in it, a transaction
// ID or anything else that means something in one cluster only would make the relays of the other one skip the backlog.
func TestDumpAndRestore(t *testing.T) {
	t.Parallel()
	old, other := devtest.Postgres(t, devstack.ServerConfig{}), devtest.Postgres(t, devstack.ServerConfig{})
	from := newCluster(t, devtest.PoolOn(t, old.DSN()), "restore")
	before := newLedger()
	stop := from.relayOn(from.pool, before)
	from.changes(400)
	eventually(t, "the old relay is at work", func() bool { return from.rows() == 0 })
	before.setDown(true)
	from.changes(500)
	dump := output(t, devtest.Tool(t, old, "pg_dump", "--schema="+from.schema, old.DSN()))
	stop()

	restore := devtest.Tool(t, other, "psql", "--set=ON_ERROR_STOP=1", "--quiet", other.DSN())
	restore.Stdin = bytes.NewReader(dump)
	output(t, restore)
	f := &cluster{&fixture{t: t, pool: devtest.PoolOn(t, other.DSN()), schema: from.schema, publisher: from.publisher}}
	require.Equal(t, 500, f.rows(), "the backlog is in the dump")
	after := newLedger()
	f.relayOn(f.pool, after)
	eventually(t, "the backlog drains", func() bool { return f.rows() == 0 })
	assert.Equal(t, 500, after.count())
	f.changes(100)
	eventually(t, "and work goes on", func() bool { return f.rows() == 0 })
	assert.Equal(t, 600, after.count())
	_, others := after.compare(f.committed())
	assert.Empty(t, others)
}

func output(t testing.TB, command *exec.Cmd) []byte {
	t.Helper()
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	require.NoError(t, err, "%s: %s", command, &stderr)
	return out
}
