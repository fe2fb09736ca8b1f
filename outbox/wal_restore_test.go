package outbox_test

import (
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

// restoration is how a dump is restored over its schema.
type restoration struct {
	another bool // makes another table, which the publication does not have
	ended   bool // the relays have ended, as they should; else they are stopped meanwhile, and go on
}

// A dump is restored over its schema. The slot then shows rows that do not exist, and their numbers are given out again. Every row that exists is
// published. If the relays have ended before, no event is overtaken by a later one of its key. Relays that run meanwhile overtake none once they
// have caught up. A relay tells that the publication lacks the table, reads rows, and reads the WAL again when the publication was dropped.
func TestWALOfARestoredSchema(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	for name, how := range map[string]restoration{
		"another table": {another: true}, "the same table": {}, "the relays have ended": {ended: true}, "another table, the relays have ended": {another: true, ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testWALOfARestoredSchema(t, how)
		})
	}
}

func testWALOfARestoredSchema(t *testing.T, how restoration) {
	server := devtest.Postgres(t, devstack.ServerConfig{})
	f := newCluster(t, devtest.PoolOn(t, server.DSN()), "restored")
	broker, troubles, publication := newDeliveries(t), trouble(t.TempDir()), store.PublicationName(f.schema)
	broker.dsn = server.DSN()
	relays := make([]*exec.Cmd, 2)
	start := func() {
		for i := range relays {
			relays[i] = broker.relay(f.schema, fromWAL+troubledBy+string(troubles))
		}
	}
	all := func(s syscall.Signal) {
		for _, r := range relays {
			require.NoError(t, r.Process.Signal(s))
		}
	}
	start()
	defer func() {
		for _, r := range relays {
			kill(r)
		}
	}()
	awaitReader := func() {
		t.Helper()
		eventually(t, "a relay reads the WAL", func() bool {
			_, relay, err := f.slotReader()
			return assert.NoError(t, err) && relay != 0
		})
	}
	drained := func() {
		t.Helper()
		eventually(t, "the outbox is drained", func() bool { return f.rows() == 0 })
	}

	awaitReader()
	f.writeSome(100)
	drained()
	require.NoError(t, troubles.begin(forbidden+topic))
	order := f.writeSome(200)
	dump := f.dumpToRestore(server, how.another)
	require.NoError(t, troubles.end(forbidden+topic))
	drained()
	f.writeSome(300)
	drained()
	awaitReader()
	if how.ended {
		all(syscall.SIGTERM)
		for _, r := range relays {
			require.NoError(t, r.Wait())
		}
	} else {
		all(syscall.SIGSTOP)
	}
	f.writeSome(100) // the slot has them, and no relay
	restored := len(broker.all())
	restore := devtest.Tool(t, server, "psql", "--set=ON_ERROR_STOP=1", "--quiet", "--single-transaction", server.DSN())
	restore.Stdin = strings.NewReader(dump)
	output(t, restore)
	f.pool.Reset()
	order = append(order, f.writeSome(100)...)
	dropPublication := func() {
		_, err := f.pool.Exec(t.Context(), `drop publication `+publication)
		require.NoError(t, err)
	}
	if how.ended {
		if how.another {
			require.ErrorContains(t, f.newRelay(newRecorder(), fromTheWAL).Run(t.Context()), `run "drop publication "`+publication+`"`)
			dropPublication()
		}
		start()
	} else {
		all(syscall.SIGCONT)
	}
	order = append(order, f.writeSome(600)...)
	drained()
	if how.another && !how.ended {
		eventually(t, "a relay tells why it reads rows", func() bool { return strings.Contains(broker.log.String(), `error="the publication `+publication) })
		dropPublication()
	}
	awaitReader()
	caughtUp := len(broker.all())
	last := f.writeSome(200)
	drained()
	order = append(order, last...)
	lost, overtaken := judge(order, broker.since(restored))
	assert.Empty(t, lost)
	if !how.ended { // a relay that goes on may take new rows for old ones, and find them later
		_, overtaken = judge(last, broker.since(caughtUp))
	}
	assert.Zero(t, overtaken, "overtaken events")
}

// judge returns which of the events were not delivered, and how many first came behind a later one of their key. The events are in the order in
// which those of each key were committed.
func judge(events []string, delivered []delivery) (lost []string, overtaken int) {
	place, highest, came := map[string]int{}, map[string]int{}, map[string]bool{}
	for i, id := range events {
		place[id] = i
	}
	for _, one := range delivered {
		i, exists := place[one.payload]
		if !exists || came[one.payload] {
			continue
		}
		came[one.payload] = true
		if i < highest[one.key] {
			overtaken++
		}
		highest[one.key] = max(highest[one.key], i)
	}
	return slices.DeleteFunc(slices.Clone(events), func(id string) bool { return came[id] }), overtaken
}

// writeSome commits events at least, and returns their IDs in an order that is the commits' order for each key.
func (f *cluster) writeSome(atLeast int) (ids []string) {
	writing := f.write(4)
	eventually(f.t, "writers write", func() bool { return writing.count() >= atLeast })
	writing.end()
	return writing.acked
}

// dumpToRestore returns the statements that bring the schema back to what it is now: with other tables, or in the same ones.
func (f *cluster) dumpToRestore(server *devstack.Server, another bool) string {
	if another {
		return `drop schema ` + f.schema + ` cascade;` + string(output(f.t, devtest.Tool(f.t, server, "pg_dump", "--schema="+f.schema, server.DSN())))
	}
	var tables string
	require.NoError(f.t, f.pool.QueryRow(f.t.Context(), `select string_agg(format('%I.%I', schemaname, tablename), ', ') from pg_tables where schemaname = $1`, f.schema).Scan(&tables))
	return `truncate ` + tables + `;` + string(output(f.t, devtest.Tool(f.t, server, "pg_dump", "--data-only", "--schema="+f.schema, server.DSN())))
}
