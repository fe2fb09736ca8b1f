package outbox_test

import (
	"context"
	"encoding/binary"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
)

// requests counts what a client asks its server: statements, however they are sent, and the times it waits for an answer.
type requests struct{ statements, waits atomic.Int64 }

// counting is a connection whose client is overheard. Messages may come in pieces.
type counting struct {
	net.Conn
	to   *requests
	rest *[]byte
	open *bool // the first message has no type
}

func (c counting) Write(b []byte) (int, error) {
	*c.rest = append(*c.rest, b...)
	for {
		buffer, at := *c.rest, 1
		if !*c.open {
			at = 0
		}
		if len(buffer) < at+4 {
			break
		}
		size := at + int(binary.BigEndian.Uint32(buffer[at:]))
		if len(buffer) < size {
			break
		}
		if *c.open {
			switch buffer[0] {
			case 'E': // Execute
				c.to.statements.Add(1)
			case 'Q': // a simple query: a statement with its own end
				c.to.statements.Add(1)
				c.to.waits.Add(1)
			case 'S': // Sync
				c.to.waits.Add(1)
			}
		}
		*c.open = true
		*c.rest = buffer[size:]
	}
	return c.Conn.Write(b)
}

func (r *requests) overhear(cfg *pgxpool.Config) {
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return counting{conn, r, new([]byte), new(bool)}, err
	}
}

// beside is the most that a relay with the default settings asks in d when there is nothing to publish: 47 statements and 9 waits a second, and
// each chore once more. BEGIN and COMMIT count as statements. The longer a busy machine takes for the events, the more of this it pays.
func beside(d time.Duration) (statements, waits int64) {
	const (
		leaseTTL, pollInterval    = 5 * time.Second, time.Second      // defaults of RelayConfig
		rescanEvery, journalEvery = 5 * time.Second, 10 * time.Second // constants of the relay
		shards, reads             = 16, 4                             // a read has four shards, because of the memory that their events may take
	)
	for _, chore := range []struct {
		every             time.Duration
		statements, waits int64
	}{
		{leaseTTL / 4, 2 + 3, 1},                    // renew the leases: the relay's row, the leases, and what others think of it
		{pollInterval, 2 + 2, 1},                    // look for failed events that are due, and for operators' settings
		{pollInterval, 2 + 1, 3},                    // move delayed events: BEGIN and COMMIT are sent apart
		{pollInterval, reads*(2+2) + shards, reads}, // read each shard; two statements of a read are about the WAL and transactions
		{rescanEvery, 2 + 1 + shards, 1},            // compare the held events with the table: a setting, and each shard
		{journalEvery, 2 + 1, 1},
	} {
		times := int64(d/chore.every) + 1
		statements, waits = statements+times*chore.statements, waits+times*chore.waits
	}
	return statements, waits
}

// What the relay costs the database can be counted, so it is.
func TestCostOfRelaying(t *testing.T) {
	t.Parallel()
	server := devtest.Postgres(t, devstack.ServerConfig{Settings: map[string]string{"autovacuum": "off"}})
	var asked requests
	pool := devtest.PoolOn(t, server.DSN(), asked.overhear)
	f := newCluster(t, devtest.PoolOn(t, server.DSN()), "cost")
	const events = 40_000
	for i := range 10 {
		f.publishMany(topic, events/10, func(n int) string { return strconv.Itoa(i*events + n) })
	}
	position := func() (bytes int64) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint`).Scan(&bytes))
		return bytes
	}
	before, began := position(), time.Now()
	relay, err := outbox.NewRelay(pool, batchRecorder{newRecorder()}, outbox.RelayConfig{Schema: f.schema})
	require.NoError(t, err)
	stop := f.run(relay)
	eventually(t, "all are published", func() bool { return f.rows() == 0 })
	stop()
	written := position() - before
	t.Logf("per 1,000 events: %.2f statements, %.2f waits; per event: %.0f bytes of WAL",
		float64(asked.statements.Load())*1000/events, float64(asked.waits.Load())*1000/events, float64(written)/events)
	statements, waits := beside(time.Since(began))
	assert.LessOrEqual(t, asked.statements.Load(), 8*events/1000+statements)
	assert.LessOrEqual(t, asked.waits.Load(), 5*events/1000+waits)
	assert.LessOrEqual(t, written, int64(120*events))
}

// Under steady load the table reaches a size and stays there: rows are deleted, and vacuum makes room for the next. Time is
// compressed: autovacuum looks every second instead of every minute. A busy machine delays it, so each round waits for one.
func TestTableDoesNotGrow(t *testing.T) {
	t.Parallel()
	devtest.Long(t)
	server := devtest.Postgres(t, devstack.ServerConfig{Settings: map[string]string{"autovacuum_naptime": "1s"}})
	f := newCluster(t, devtest.PoolOn(t, server.DSN()), "growth")
	const batches = 150
	at := devtest.Storm(40, 20)
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	round := func() {
		for n := range batches {
			f.publishMany(topic, at, func(i int) string { return strconv.Itoa(n*at + i) })
			<-pace.C
		}
	}
	get := func(what string) (n int64) {
		require.NoError(t, f.pool.QueryRow(t.Context(), `select `+what+` from pg_stat_all_tables where relid = 'growth.outbox'::regclass`).Scan(&n))
		return n
	}
	const vacuums, size = "autovacuum_count", "pg_total_relation_size(relid)"
	round()
	full := get(size)
	f.run(f.newRelay(batchRecorder{newRecorder()}, outbox.RelayConfig{}))
	for range devtest.Storm(9, 5) {
		before := get(vacuums)
		round()
		eventually(t, "all are published, and vacuum was there", func() bool { return f.rows() == 0 && get(vacuums) > before })
	}
	late := get(size)
	t.Logf("%d bytes with the events of a round, %d late", full, late)
	assert.LessOrEqual(t, late, 3*full)
}
