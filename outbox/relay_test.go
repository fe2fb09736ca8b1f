package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

func TestRelayForwardsWhatIsThere(t *testing.T) {
	t.Parallel()
	for name, wrap := range publishers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, broker := newFixture(t), newRecorder()
			var id string
			require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
				msg := newMessage(ctx, "key", "payload")
				msg.Metadata.Set("trace", "<1>")
				id = msg.UUID
				return f.publisher.Publish(topic, msg)
			}))
			f.run(f.newRelay(wrap(broker), outbox.RelayConfig{}))
			eventually(t, "the event is published and its row deleted", func() bool { return broker.count() == 1 && f.rows() == 0 })
			broker.mu.Lock()
			defer broker.mu.Unlock()
			assert.Equal(t, id, broker.last.UUID, "the event keeps its ID")
			assert.Equal(t, "payload", string(broker.last.Payload))
			assert.Equal(t, "key", transport.Key(broker.last))
			assert.Equal(t, "<1>", broker.last.Metadata.Get("trace"))
			assert.Len(t, broker.last.Metadata, 2)
		})
	}
}

// Writers lock their aggregate, commit late or roll back, while three relays come and go. Every committed event arrives,
// the first deliveries of a key in the order of its commits, and nothing that was rolled back.
func TestOrderPerKeyUnderManyRelays(t *testing.T) {
	t.Parallel()
	const keys, writers, each = 20, 8, 60
	f, broker := newFixture(t), newRecorder()
	_, err := f.pool.Exec(t.Context(), `create table `+f.schema+`.aggregate (id int primary key, n int not null);
		insert into `+f.schema+`.aggregate select i, 0 from generate_series(0, `+strconv.Itoa(keys-1)+`) i`)
	require.NoError(t, err)

	relays, stopRelays := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range 3 {
		running.Go(func() {
			for n := 0; relays.Err() == nil; n++ {
				ctx, cancel := context.WithTimeout(relays, time.Duration(300+100*i)*time.Millisecond)
				assert.NoError(t, f.newRelay(batchRecorder{broker}, outbox.RelayConfig{BatchSize: 7}).Run(ctx))
				cancel()
			}
		})
	}
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				key := (w*7 + i) % keys
				err := pgtx.Run(context.Background(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
					var n int
					if err := tx.QueryRow(ctx, `update `+f.schema+`.aggregate set n = n + 1 where id = $1 returning n`, key).Scan(&n); err != nil {
						return err
					}
					if err := f.publisher.Publish(topic, newMessage(ctx, strconv.Itoa(key), strconv.Itoa(n))); err != nil {
						return err
					}
					if i%5 == 0 { // its number is taken, and later ones overtake it
						if _, err := tx.Exec(ctx, `select pg_sleep(0.01)`); err != nil {
							return err
						}
					}
					if i%7 == 3 {
						return errOops
					}
					return nil
				})
				if err != nil {
					assert.ErrorIs(t, err, errOops)
				}
			}
		})
	}
	writing.Wait()
	eventually(t, "the outbox is empty", func() bool { return f.rows() == 0 })
	stopRelays()
	running.Wait()
	for key := range keys {
		var committed int
		require.NoError(t, f.pool.QueryRow(t.Context(), `select n from `+f.schema+`.aggregate where id = $1`, key).Scan(&committed))
		require.Positive(t, committed)
		var first []string // deliveries, the repeated ones left out
		for _, p := range broker.of(strconv.Itoa(key)) {
			if !slices.Contains(first, p) {
				first = append(first, p)
			}
		}
		require.Len(t, first, committed)
		for i, p := range first {
			require.Equal(t, strconv.Itoa(i+1), p, "key %d: %v", key, first)
		}
	}
}

func TestFailingKeyWaitsAlone(t *testing.T) {
	t.Parallel()
	for name, wrap := range publishers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, broker := newFixture(t), newRecorder()
			broker.refuseAll(func(p string) bool { return p == "bad 1" })
			// More rows of the failing key than a batch holds, so that they could fill every batch.
			for i := range 30 {
				f.publish("bad", fmt.Sprint("bad ", i+1))
			}
			f.publish("good", "good")
			f.publish("", "without a key")
			f.run(f.newRelay(wrap(broker), outbox.RelayConfig{BatchSize: 10}))
			eventually(t, "the others go on", func() bool { return broker.count() == 2 && f.rows() == 30 })
			f.publish("good", "good later")
			eventually(t, "newcomers too", func() bool { return broker.count() == 3 && f.rows() == 30 })
			assert.Empty(t, broker.of("bad"))

			broker.refuseAll(nil)
			eventually(t, "the key drains", func() bool { return f.rows() == 0 })
			want := make([]string, 30)
			for i := range want {
				want[i] = fmt.Sprint("bad ", i+1)
			}
			assert.Equal(t, want, broker.of("bad"), "in order, each once")
		})
	}
}

func TestOutageOfTheBroker(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	broker.refuseAll(func(string) bool { return true })
	for i := range 200 {
		f.publish(strconv.Itoa(i%50), strconv.Itoa(i))
	}
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{BatchSize: 20}))
	eventually(t, "it is tried", func() bool { broker.mu.Lock(); defer broker.mu.Unlock(); return broker.batches > 50 })
	assert.Equal(t, 200, f.rows(), "nothing is dropped")
	broker.refuseAll(nil)
	eventually(t, "the backlog drains", func() bool { return f.rows() == 0 })
	assert.Equal(t, []string{"7", "57", "107", "157"}, broker.of("7"))
}

// With an hour between polls, only the wake-up after the commit can bring an event to the broker.
func TestWakeUpAfterCommit(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{PollInterval: time.Hour}))
	f.publish("k", "before all shards are leased, or after")
	eventually(t, "first", func() bool { return broker.count() == 1 })
	f.publish("k", "second")
	eventually(t, "second", func() bool { return broker.count() == 2 && f.rows() == 0 })
}

// A transaction that Millrace did not begin: its owner nudges.
func TestNudge(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	r := f.newRelay(broker, outbox.RelayConfig{PollInterval: time.Hour})
	f.run(r)
	f.publish("k", "the relay is up")
	eventually(t, "up", func() bool { return broker.count() == 1 })
	f.commitSilently("nudged")
	r.Nudge()
	eventually(t, "nudged", func() bool { return broker.count() == 2 })
}

func TestPollFindsSilentCommits(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	f.run(f.newRelay(broker, outbox.RelayConfig{PollInterval: 50 * time.Millisecond}))
	f.commitSilently("polled")
	eventually(t, "polled", func() bool { return broker.count() == 1 })
}

func (f *fixture) commitSilently(payload string) {
	tx, err := f.pool.Begin(f.t.Context())
	require.NoError(f.t, err)
	require.NoError(f.t, f.publisher.Publish(topic, newMessage(pgtx.With(f.t.Context(), tx), "k", payload)))
	require.NoError(f.t, tx.Commit(f.t.Context()))
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	pool := devtest.Pool(t)
	r, err := outbox.NewRelay(pool, newRecorder(), outbox.RelayConfig{Schema: devtest.Schema(t)})
	require.NoError(t, err)
	require.ErrorContains(t, r.Run(t.Context()), "this program needs 1: run \"millrace migrate up\" or outbox.Migrate")
	require.ErrorContains(t, r.Run(t.Context()), "create another")
}

func TestRelayConfig(t *testing.T) {
	t.Parallel()
	_, err := outbox.NewRelay(nil, nil, outbox.RelayConfig{
		Schema: "Big", BatchSize: -1, LeaseTTL: time.Millisecond, PollInterval: -1, PublishTimeout: -1, DrainTimeout: -1,
	})
	for _, want := range []string{
		"pool is nil", "publisher is nil", `RelayConfig.Schema is "Big"`, "RelayConfig.BatchSize is -1: want 1 to 10000",
		"RelayConfig.LeaseTTL is 1ms: want 500ms or more", "RelayConfig.PollInterval", "RelayConfig.PublishTimeout", "RelayConfig.DrainTimeout",
	} {
		require.ErrorContains(t, err, want)
	}
	own, err := outbox.NewPublisher(outbox.PublisherConfig{})
	require.NoError(t, err)
	_, err = outbox.NewRelay(devtest.Pool(t), own, outbox.RelayConfig{})
	require.ErrorContains(t, err, "the outbox's own", "it would publish to itself for ever")
}

// A role whose transactions are read-only made every step fail, again and again.
func TestReadOnlyRoleIsToldAtTheStart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cfg := f.pool.Config()
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	r, err := outbox.NewRelay(pool, newRecorder(), outbox.RelayConfig{Schema: f.schema})
	require.NoError(t, err)
	require.ErrorContains(t, r.Run(t.Context()), "default_transaction_read_only is on")
}
