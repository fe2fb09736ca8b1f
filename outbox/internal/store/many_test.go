package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/outbox/internal/step"
	"github.com/millrace-go/millrace/outbox/internal/store"
)

// manyFailed is an outbox of failed events, each with its state, shard, key and command, and a relay that holds every shard.
func manyFailed(t *testing.T, event func(n int) (state string, shard int16, key string, command *string)) (pool *pgxpool.Pool, schema string, r *store.Relay) {
	t.Helper()
	pool, schema = devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, migrate(t.Context(), pool, schema))
	_, err := pool.Exec(t.Context(), pgschema.Render(`alter table {schema}.outbox_failed set (autovacuum_enabled = off)`, schema)) // nor is it analyzed
	require.NoError(t, err)
	_, err = pool.CopyFrom(t.Context(), pgx.Identifier{schema, "outbox_failed"},
		[]string{"state", "hash", "shard", "key", "command", "seq", "event_id", "topic", "headers", "payload", "created_at"},
		pgx.CopyFromSlice(25_000, func(n int) ([]any, error) {
			state, shard, key, command := event(n)
			return []any{state, store.Hash(key, fmt.Sprint(n)), shard, key, command, n, fmt.Sprint(n), "t", []byte("{}"), []byte("p"), time.Now()}, nil
		}))
	require.NoError(t, err)
	r = store.NewRelay(pool, schema, uuid.New(), "", time.Minute, 0)
	t.Cleanup(func() { assert.NoError(t, r.Leave(t.Context())) }) // it has a connection of its own
	require.NoError(t, r.Renew(t.Context(), step.Renew{}).Err)
	return pool, schema, r
}

// The keys of all failed events were one statement's answer. With more of them than it could read in its time no relay could take a
// shard.
func TestKeysOfManyFailedEvents(t *testing.T) {
	t.Parallel()
	_, _, r := manyFailed(t, func(n int) (string, int16, string, *string) {
		key := fmt.Sprint("key ", n%3000)
		if n%3000 < 100 {
			key = ""
		}
		return step.Blocked, int16(n % 2), key, nil
	})
	loaded := r.Blocked(t.Context(), step.LoadBlocked{Shards: []step.Ref{{Shard: 0}, {Shard: 1}, {Shard: 2}}})
	require.NoError(t, loaded.Err)
	keys := map[int16][]string{}
	for shard, found := range loaded.Keys {
		slices.Sort(found)
		keys[shard] = slices.Compact(found)
	}
	want := map[int16][]string{}
	for n := 100; n < 3000; n++ {
		want[int16(n)%2] = append(want[int16(n)%2], fmt.Sprint("key ", n))
	}
	slices.Sort(want[0])
	slices.Sort(want[1])
	assert.Equal(t, want, keys)
}

// readRows runs f, and returns how many rows of the failed events were read meanwhile.
func readRows(t *testing.T, pool *pgxpool.Pool, schema string, f func(own *pgxpool.Pool)) (n int) {
	t.Helper()
	own, err := pgxpool.NewWithConfig(t.Context(), pool.Config())
	require.NoError(t, err)
	count := func() (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), `select idx_tup_fetch + seq_tup_read from pg_stat_all_tables where relid = $1::regclass`, schema+".outbox_failed").Scan(&n))
		return n
	}
	before := count()
	f(own)
	own.Close() // only then are its statistics complete
	require.Eventually(t, func() bool { n = count() - before; return n > 0 }, time.Minute, 10*time.Millisecond)
	return n
}

// Each time that one of many blocked events of a key was published, all the others were read.
func TestManyEventsBehindOne(t *testing.T) {
	t.Parallel()
	pool, schema, _ := manyFailed(t, func(int) (string, int16, string, *string) { return step.Blocked, 0, "key", nil })
	read := readRows(t, pool, schema, func(own *pgxpool.Pool) {
		r := store.NewRelay(own, schema, uuid.New(), "", time.Minute, 0)
		settled := r.SettleFailed(t.Context(), step.SettleFailed{Done: []int64{1}, Keys: []string{"key"}})
		require.NoError(t, settled.Err)
		assert.Equal(t, []string{"key"}, settled.Left)
	})
	t.Logf("%d rows were read", read)
	assert.Less(t, read, 100)
	var id int64
	require.NoError(t, pool.QueryRow(t.Context(), `select id from `+schema+`.outbox_failed where state = 'retrying'`).Scan(&id))
	assert.EqualValues(t, 2, id)
}

// An operator's command on any number of events was one statement of the relay. One that took longer than a statement may take was
// repeated for ever, and no failed event of the shard was retried.
func TestCommandOnManyFailedEvents(t *testing.T) {
	t.Parallel()
	pool, schema, r := manyFailed(t, func(n int) (string, int16, string, *string) {
		discard := "discard"
		switch key := fmt.Sprint("key ", n/5); {
		case n >= 24_000:
			return step.Dead, 0, key, nil
		case n%5 == 0:
			return step.Dead, 0, key, &discard
		case n%5 == 4 && n < 1000:
			return step.Blocked, 0, key, nil
		default:
			return step.Blocked, 0, key, &discard
		}
	})
	most := func() (n int) { // rows that were changed by one transaction
		require.NoError(t, pool.QueryRow(t.Context(), `select max(n) from (select count(*) as n from `+schema+`.outbox_failed where state = 'discarded' group by xmin) x`).Scan(&n))
		return n
	}
	answer := r.FetchFailed(t.Context(), step.FetchFailed{Ref: step.Ref{Term: 1}, Heads: 200, PerKey: 200, Bytes: 1 << 20})
	require.NoError(t, answer.Err)
	var rest int
	require.NoError(t, pool.QueryRow(t.Context(), `select count(*) from `+schema+`.outbox_failed where command is not null`).Scan(&rest))
	assert.Zero(t, rest)
	assert.LessOrEqual(t, most(), 1000)
	assert.Equal(t, 4600, len(answer.Freed), "the keys of which nothing is left") //nolint:testifylint // Len would print all of them
	require.Len(t, answer.Groups, 200, "the last event of each of the others")
	assert.EqualValues(t, 4, answer.Groups[0][0].Seq)
	assert.Len(t, answer.Groups[0], 1)
}
