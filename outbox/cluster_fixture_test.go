package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

// cluster is an outbox, usually on a server of the test's own, beside a table that each transaction with an event writes
// the event's ID to: what that table holds in the end is what was committed, whatever the server has suffered.
type cluster struct{ *fixture }

func newCluster(t testing.TB, pool *pgxpool.Pool, schema string) *cluster {
	f := &cluster{&fixture{t: t, pool: pool, schema: schema}}
	require.NoError(t, outbox.Migrate(t.Context(), pool, schema))
	_, err := pool.Exec(t.Context(), `create table `+schema+`.change (event_id text primary key)`)
	require.NoError(t, err)
	f.publisher, err = outbox.NewPublisher(outbox.PublisherConfig{Schema: schema})
	require.NoError(t, err)
	return f
}

// change commits a change and its event, after the other statements, and returns the event's ID. An undone change is
// rolled back.
func (f *cluster) change(ctx context.Context, pool *pgxpool.Pool, key string, undone bool, statements ...string) (id string, err error) {
	err = pgtx.Run(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		for _, s := range statements {
			if _, err := tx.Exec(ctx, s); err != nil {
				return err
			}
		}
		msg := newMessage(ctx, key, "")
		id, msg.Payload = msg.UUID, []byte(msg.UUID)
		if _, err := tx.Exec(ctx, `insert into `+f.schema+`.change values ($1)`, id); err != nil {
			return err
		}
		if err := f.publisher.Publish(topic, msg); err != nil || !undone {
			return err
		}
		return errUndone
	})
	return id, err
}

// changes commits so many changes in one transaction, with keys that reach every shard.
func (f *cluster) changes(n int) {
	require.NoError(f.t, pgtx.Run(f.t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		msgs, ids := make([]*message.Message, n), make([]string, n)
		for i := range msgs {
			msgs[i] = newMessage(ctx, strconv.Itoa(i%100), "payload")
			ids[i] = msgs[i].UUID
		}
		if _, err := tx.Exec(ctx, `insert into `+f.schema+`.change select unnest($1::text[])`, ids); err != nil {
			return err
		}
		return f.publisher.Publish(topic, msgs...)
	}))
}

// committed lists the IDs of the changes that are there.
func (f *cluster) committed() []string {
	rows, err := f.pool.Query(context.Background(), `select event_id from `+f.schema+`.change`)
	require.NoError(f.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(f.t, err)
	return ids
}

// relayOn runs a relay that polls often and whose shards are soon free, until stop is called or the test ends.
func (f *cluster) relayOn(pool *pgxpool.Pool, p message.Publisher) (stop func()) {
	return f.relayFrom(outbox.Table, pool, p)
}

// relayFrom is relayOn with a source.
func (f *cluster) relayFrom(source outbox.Source, pool *pgxpool.Pool, p message.Publisher) (stop func()) {
	cfg := f.quick()
	cfg.Source = source
	relay, err := outbox.NewRelay(pool, p, cfg)
	require.NoError(f.t, err)
	return f.run(relay)
}

func (f *cluster) quick() outbox.RelayConfig {
	return outbox.RelayConfig{
		Schema: f.schema, PollInterval: 50 * time.Millisecond, LeaseTTL: 3 * time.Second, DrainTimeout: 2 * time.Second,
		Logger: slog.New(slog.NewTextHandler(f.t.Output(), nil)),
	}
}

// drained waits until no row is left, and reports the committed events that the broker did not get, and those it got
// that are not committed.
func (f *cluster) drained(broker *ledger) (lost, vanished []string) {
	f.t.Helper()
	eventually(f.t, "the outbox drains", func() bool { return f.rows() == 0 })
	return broker.compare(f.committed())
}

// load is writers that change things until end is called or the database fails them.
type load struct {
	ended   atomic.Bool
	running sync.WaitGroup
	mu      sync.Mutex
	acked   []string
}

// errUndone is the error of an undone change.
var errUndone = errors.New("undone")

// write starts writers whose transactions begin with the statements. Some of what they do is rolled back.
func (f *cluster) write(writers int, statements ...string) *load {
	l := &load{}
	for w := range writers {
		l.running.Go(func() {
			for i := 0; !l.ended.Load(); i++ {
				id, err := f.change(context.Background(), f.pool, strconv.Itoa(10*w+i%10), i%5 == 4, statements...)
				switch {
				case err == nil:
					l.mu.Lock()
					l.acked = append(l.acked, id)
					l.mu.Unlock()
				case !errors.Is(err, errUndone):
					return // the outcome may be unknown
				}
			}
		})
	}
	return l
}

func (l *load) end() {
	l.ended.Store(true)
	l.running.Wait()
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// ledger is a broker that remembers which events it got, by their IDs.
type ledger struct {
	mu    sync.Mutex
	times map[string]int
	byKey map[string][]string // each ID once, in order of arrival
	down  bool
}

func newLedger() *ledger { return &ledger{times: map[string]int{}, byKey: map[string][]string{}} }

func (l *ledger) Publish(_ string, msgs ...*message.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return errRefused
	}
	for _, m := range msgs {
		if l.times[m.UUID]++; l.times[m.UUID] == 1 {
			l.byKey[transport.Key(m)] = append(l.byKey[transport.Key(m)], m.UUID)
		}
	}
	return nil
}

func (l *ledger) PublishBatch(_ context.Context, topic string, msgs []*message.Message) []error {
	err, errs := l.Publish(topic, msgs...), make([]error, len(msgs))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (l *ledger) Close() error { return nil }

func (l *ledger) setDown(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

// count is of different events.
func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.times)
}

// compare tells which of the events are not here, and which others are.
func (l *ledger) compare(ids []string) (missing, others []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	missing = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return l.times[id] > 0 })
	known := map[string]bool{}
	for _, id := range ids {
		known[id] = true
	}
	for id := range l.times {
		if !known[id] {
			others = append(others, id)
		}
	}
	return missing, others
}
