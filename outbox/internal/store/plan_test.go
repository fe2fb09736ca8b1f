package store_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

// An outbox is nearly always empty when it is analyzed, if it ever was. For the backlog of an outage PostgreSQL then expected a few rows, and read
// and sorted all of a shard for each batch: a backlog of a million events took a hundred times as long.
func TestBacklogIsReadByTheIndex(t *testing.T) {
	t.Parallel()
	const rows, batch = 50_000, 1000
	for name, read := range map[string]func(t *testing.T, pool *pgxpool.Pool, schema string) int{
		"read small events": func(t *testing.T, pool *pgxpool.Pool, schema string) (n int) {
			reader := store.NewReader(pool, schema)
			for from := int64(0); from < rows/2; from += batch {
				answer, err := reader.Read(t.Context(), []step.Request{{From: from, Limit: batch, Each: 1000}}, false)
				require.NoError(t, err)
				n += len(answer.Shards[0].Above)
			}
			return n
		},
		"read": func(t *testing.T, pool *pgxpool.Pool, schema string) (n int) {
			reader := store.NewReader(pool, schema)
			for from := int64(0); from < rows/2; from += batch {
				answer, err := reader.Read(t.Context(), []step.Request{{From: from, Limit: batch, Bytes: 1 << 20, List: []int64{from}}}, false)
				require.NoError(t, err)
				n += len(answer.Shards[0].Above) + len(answer.Shards[0].Listed)
			}
			return n
		},
		"set aside": func(t *testing.T, pool *pgxpool.Pool, schema string) int {
			r := store.NewRelay(pool, schema, uuid.New(), "", time.Minute, 0)
			defer func() { assert.NoError(t, r.Leave(t.Context())) }() // it has a connection of its own
			require.NoError(t, r.Renew(t.Context(), step.Renew{}).Err)
			events := make([]step.Aside, batch)
			for i := range events {
				events[i] = step.Aside{State: step.Blocked, Event: &step.Event{Row: step.Row{Seq: int64(i + 1), EventID: strconv.Itoa(i + 1)}}}
			}
			moved := r.SetAside(t.Context(), step.SetAside{Ref: step.Ref{Term: 1}, Events: events})
			require.NoError(t, moved.Err)
			return moved.Moved
		},
		"delete what has moved": func(t *testing.T, pool *pgxpool.Pool, schema string) int {
			gone := make([]step.ShardRow, batch)
			for i := range gone {
				gone[i] = step.ShardRow{Row: &step.Row{Seq: int64(i + 1), EventID: strconv.Itoa(i + 1)}}
			}
			require.NoError(t, store.NewRelay(pool, schema, uuid.New(), "", time.Minute, 0).Delete(t.Context(), gone))
			return batch
		},
		"rescan": func(t *testing.T, pool *pgxpool.Pool, schema string) int {
			found, err := store.NewRelay(pool, schema, uuid.New(), "", time.Minute, 0).Rescan(t.Context(), []step.RescanRequest{{UpTo: rows, Limit: batch}})
			require.NoError(t, err)
			return len(found[0])
		},
	} {
		run := func(t *testing.T, analyzed bool) {
			t.Parallel()
			pool, schema := devtest.Pool(t), devtest.Schema(t)
			require.NoError(t, migrate(t.Context(), pool, schema))
			exec := func(sql string) {
				_, err := pool.Exec(t.Context(), pgschema.Render(sql, schema))
				require.NoError(t, err)
			}
			exec(`alter table {schema}.outbox set (autovacuum_enabled = off)`)
			exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) select n % 16, n, n, 't', '', '{}', 'p' from generate_series(1, 1000) n`)
			exec(`delete from {schema}.outbox`)
			if analyzed {
				exec(`vacuum analyze {schema}.outbox`)
			}
			exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) select 0, n, n, 't', '', '{}', 'p' from generate_series(1, 50000) n`)

			own, err := pgxpool.NewWithConfig(t.Context(), pool.Config())
			require.NoError(t, err)
			got := read(t, own, schema)
			own.Close() // only then are its statistics complete
			require.GreaterOrEqual(t, got, batch)
			var looked int
			require.Eventually(t, func() bool {
				require.NoError(t, pool.QueryRow(t.Context(), `select idx_tup_fetch + seq_tup_read from pg_stat_all_tables where relid = $1::regclass`, schema+".outbox").Scan(&looked))
				return looked >= got
			}, time.Minute, 10*time.Millisecond)
			t.Logf("%d rows were looked at for %d", looked, got)
			assert.LessOrEqual(t, looked, 2*got+batch)
		}
		t.Run(name+", analyzed when empty", func(t *testing.T) { run(t, true) })
		t.Run(name+", never analyzed", func(t *testing.T) { run(t, false) })
	}
}
