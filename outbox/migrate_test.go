package outbox

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/pgschema"
	"github.com/millrace-go/millrace/pgtx"
)

// upTo is the outbox's line as a program of that version knows it.
func upTo(t *testing.T, version int) pgschema.Line {
	older := fstest.MapFS{}
	for _, name := range []string{"001_outbox", "002_complete"}[:version] {
		for _, suffix := range []string{".up.sql", ".down.sql"} {
			content, err := files.ReadFile("migrations/" + name + suffix)
			require.NoError(t, err)
			older["migrations/"+name+suffix] = &fstest.MapFile{Data: content}
		}
	}
	l := migrations
	l.Files = older
	return l
}

// insertV1 is how programs of version 1 write: with a shard of their own computing and sequences by name.
func insertV1(schema string) string {
	var numbers strings.Builder
	for i := range 16 {
		fmt.Fprintf(&numbers, " when %d then nextval('{schema}.outbox_seq_%d'::regclass)", i, i)
	}
	return pgschema.Render(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload)
		select e.shard, case when pg_current_xact_id() is not null then case e.shard`+numbers.String()+` end end,
			e.event_id, 'topic', e.key, '{}', 'payload'
		from unnest($1::smallint[], $2::text[], $3::text[]) as e (shard, event_id, key)`, schema)
}

// ids is a broker that counts events.
type ids struct{ sync.Map }

func (*ids) Close() error { return nil }
func (b *ids) Publish(_ string, msgs ...*message.Message) error {
	for _, m := range msgs {
		b.Store(m.UUID, m)
	}
	return nil
}

// relayAll runs a relay until the condition holds.
func relayAll(t *testing.T, pool *pgxpool.Pool, schema string, p message.Publisher, condition func() bool) {
	relay, err := NewRelay(pool, p, RelayConfig{Schema: schema})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	assert.Eventually(t, condition, 20*time.Second, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

// Programs of version 1 write before, during and after the migration, one of them in a transaction that spans it.
func TestMigrateBesideWritersOfVersion1(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	first, err := upTo(t, 1).In(pool, schema)
	require.NoError(t, err)
	require.NoError(t, first.Up(t.Context()))

	insert, written := insertV1(schema), new(sync.Map)
	write := func(db interface {
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}, key string,
	) error {
		id := NewID()
		rows, err := db.Query(t.Context(), insert, []int16{int16(hashOf(key, id) % 16)}, []string{id}, []string{key})
		if err != nil {
			return err
		}
		if rows.Close(); rows.Err() != nil {
			return rows.Err()
		}
		written.Store(id, true)
		return nil
	}
	for range 10 {
		require.NoError(t, write(pool, "key"))
	}
	spanning, err := pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, write(spanning, "spanning"))

	var writing sync.WaitGroup
	var stop atomic.Bool
	for w := range 3 {
		writing.Go(func() {
			for !stop.Load() {
				if !assert.NoError(t, write(pool, fmt.Sprint("key", w))) {
					return
				}
			}
		})
	}
	m, err := Migrations(pool, schema)
	require.NoError(t, err)
	m.Patience = time.Millisecond // no lock is waited for
	require.NoError(t, m.Up(t.Context()))
	require.NoError(t, write(spanning, "spanning"))
	require.NoError(t, spanning.Commit(t.Context()))

	publisher, err := NewPublisher(PublisherConfig{Schema: schema})
	require.NoError(t, err)
	for range 10 { // beside those of version 1
		require.NoError(t, pgtx.Run(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
			msg := message.NewMessageWithContext(ctx, NewID(), nil)
			written.Store(msg.UUID, true)
			return publisher.Publish("topic", msg)
		}))
	}
	stop.Store(true)
	writing.Wait()
	require.NoError(t, upTo(t, 1).Check(t.Context(), pool, schema), "programs of version 1 may also start")

	broker := new(ids)
	relayAll(t, pool, schema, broker, func() bool {
		missing := 0
		written.Range(func(id, _ any) bool {
			if _, ok := broker.Load(id); !ok {
				missing++
			}
			return true
		})
		return missing == 0
	})
}

func TestDownKeepsWhatIsNotPublished(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	m, err := Migrations(pool, schema)
	require.NoError(t, err)
	exec := func(sql string) {
		_, err := pool.Exec(t.Context(), pgschema.Render(sql, schema))
		require.NoError(t, err)
	}
	for _, to := range []int{0, 1} {
		require.NoError(t, m.Up(t.Context()))
		exec(`insert into {schema}.outbox (shard, seq, event_id, topic, key, headers, payload) select 0, 1, 'a', 't', '', '', ''`)
		exec(`insert into {schema}.outbox_delayed (due_at, hash, event_id, topic, key, headers, payload) select now(), 0, 'a', 't', '', '', '' from generate_series(1, 2)`)
		exec(`insert into {schema}.outbox_failed (state, hash, shard, seq, event_id, topic, key, headers, payload, created_at)
			select unnest(array['retrying', 'blocked', 'dead', 'discarded']), 0, 0, 1, 'a', 't', '', '', '', now()`)
		require.ErrorContains(t, m.Down(t.Context(), to, false), "1 in the outbox, 2 delayed, 3 failed or blocked")
		require.NoError(t, m.Down(t.Context(), to, true))
	}
	require.ErrorContains(t, m.Down(t.Context(), 0, false), "1 in the outbox, 0 delayed")
	require.NoError(t, m.Up(t.Context()))
	exec(`delete from {schema}.outbox`)
	exec(`update {schema}.outbox_layout set shards = 4`)
	require.ErrorContains(t, m.Down(t.Context(), 0, true), `"millrace outbox shards 16" first`)
	exec(`update {schema}.outbox_layout set shards = 16`)
	require.NoError(t, m.Down(t.Context(), 0, false))
}

// A change of shards that died refuses producers no longer than it said.
func TestFenceEndsByItself(t *testing.T) {
	t.Parallel()
	pool, schema := devtest.Pool(t), devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, schema))
	next := func(until string) (n int64, err error) {
		_, err = pool.Exec(t.Context(), pgschema.Render(fencedNext(16, until), schema))
		require.NoError(t, err)
		return n, pool.QueryRow(t.Context(), pgschema.Render(`select {schema}.outbox_next(3::smallint)`, schema)).Scan(&n)
	}
	_, err := next("2999-01-01 00:00+00")
	require.ErrorContains(t, err, "55006")
	_, err = next("2001-01-01 00:00+00")
	require.NoError(t, err)

	found, err := Examine(t.Context(), pool, schema, false)
	require.NoError(t, err)
	require.Len(t, found, 1)
	assert.True(t, found[0].Note)
	assert.Contains(t, found[0].Text, `"millrace outbox shards 16" finishes it`)
	require.NoError(t, ChangeShards(t.Context(), pool, schema, 16, nil))
	found, err = Examine(t.Context(), pool, schema, false)
	require.NoError(t, err)
	assert.Empty(t, found)

	// It is the very function that the migration makes.
	var ours, theirs string
	source := `select prosrc from pg_proc where oid = $1::regprocedure`
	require.NoError(t, pool.QueryRow(t.Context(), source, schema+".outbox_next(smallint)").Scan(&ours))
	other := devtest.Schema(t)
	require.NoError(t, Migrate(t.Context(), pool, other))
	require.NoError(t, pool.QueryRow(t.Context(), source, other+".outbox_next(smallint)").Scan(&theirs))
	assert.Equal(t, strings.ReplaceAll(theirs, other, schema), ours)
}
