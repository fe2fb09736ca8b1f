package outbox_test

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

// A dump holds rows, sequences and the leases of relays that live elsewhere. A position of a relay in it, a transaction
// ID or anything else that means something in one cluster only would make the relays of the other one skip the backlog.
func TestDumpAndRestore(t *testing.T) {
	t.Parallel()
	for _, source := range []outbox.Source{outbox.Table, outbox.WAL} {
		t.Run(source.String(), func(t *testing.T) {
			t.Parallel()
			testDumpAndRestore(t, source)
		})
	}
}

func testDumpAndRestore(t *testing.T, source outbox.Source) {
	old, other := devtest.Postgres(t, devstack.ServerConfig{}), devtest.Postgres(t, devstack.ServerConfig{})
	from := newCluster(t, devtest.PoolOn(t, old.DSN()), "restore")
	before := newLedger()
	stop := from.relayFrom(source, from.pool, before)
	from.changes(400)
	eventually(t, "the old relay is at work", func() bool { return from.rows() == 0 && from.readsSlot(source) })
	before.setDown(true)
	from.changes(500)
	dump := output(t, devtest.Tool(t, old, "pg_dump", "--schema="+from.schema, old.DSN()))
	stop()

	restore := devtest.Tool(t, other, "psql", "--set=ON_ERROR_STOP=1", "--quiet", other.DSN())
	restore.Stdin = bytes.NewReader(dump)
	output(t, restore)
	f := &cluster{&fixture{t: t, pool: devtest.PoolOn(t, other.DSN()), schema: from.schema, publisher: from.publisher}}
	require.Equal(t, 500, f.rows(), "the backlog is in the dump")
	backlog := f.inOrder()
	after := newLedger()
	f.relayFrom(source, f.pool, after)
	eventually(t, "the backlog drains", func() bool { return f.rows() == 0 })
	assert.Equal(t, 500, after.count())
	assert.Equal(t, backlog, after.byKey, "no event is overtaken")
	eventually(t, "the relay reads a slot of the other server", func() bool { return f.readsSlot(source) })
	f.changes(100)
	eventually(t, "and work goes on", func() bool { return f.rows() == 0 })
	assert.Equal(t, 600, after.count())
	lost, others := after.compare(f.committed())
	assert.Len(t, lost, 400, "the dump has none of the events that were published before it")
	assert.Empty(t, others)
}

// inOrder lists the IDs of each key's events that wait, in their order.
func (f *cluster) inOrder() map[string][]string {
	rows, err := f.pool.Query(f.t.Context(), `select key, event_id from (
		select 0, id, key, event_id from `+f.schema+`.outbox_failed union all select 1, seq, key, event_id from `+f.schema+`.outbox
	) events (place, number, key, event_id) order by place, number`)
	require.NoError(f.t, err)
	ids := map[string][]string{}
	var key, id string
	_, err = pgx.ForEachRow(rows, []any{&key, &id}, func() error { ids[key] = append(ids[key], id); return nil })
	require.NoError(f.t, err)
	return ids
}

// readsSlot reports whether somebody reads the slot. Relays whose source is the table need none.
func (f *cluster) readsSlot(source outbox.Source) (reads bool) {
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `select exists (select from pg_replication_slots where slot_name = $1 and active)`, f.slot()).Scan(&reads))
	return reads || source == outbox.Table
}

func output(t testing.TB, command *exec.Cmd) []byte {
	t.Helper()
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	require.NoError(t, err, "%s: %s", command, &stderr)
	return out
}
