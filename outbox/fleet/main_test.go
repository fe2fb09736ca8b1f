package fleet_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/role"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/fleet"
)

func TestMain(m *testing.M) {
	if role.Name() == fleetProcess {
		os.Exit(role.Play(playFleet))
	}
	devtest.Main(m)
}

// migrated creates the outbox's tables in a database.
func migrated(dsn string) error {
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	return outbox.Migrate(context.Background(), pool, "")
}

// databases creates n of them, with outboxes.
func databases(t *testing.T, n int) (all []fleet.Database) {
	t.Helper()
	for i, dsn := range devtest.Databases(t, n, migrated) {
		all = append(all, fleet.Database{Name: fmt.Sprintf("tenant-%d", i), DSN: dsn})
	}
	return all
}

// write commits an event as a process elsewhere does, which wakes no relay of this one.
func write(t *testing.T, db fleet.Database, key string, payloads ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.DSN)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, p := range payloads {
		require.NoError(t, insert(t.Context(), conn, key, p))
	}
}

func insert(ctx context.Context, conn *pgx.Conn, key, payload string) error {
	_, err := conn.Exec(ctx, `insert into millrace.outbox (shard, seq, event_id, topic, key, headers, payload)
		select s, millrace.outbox_next(s), $1, 'orders', $2, '{}', $3 from (select millrace.outbox_shard_of(abs(hashtext($2))::bigint) as s) k`,
		outbox.NewID(), key, []byte(payload))
	return err
}

// broker remembers what it got.
type broker struct {
	mu sync.Mutex
	at map[string]time.Time // payloads, when they first came
}

func newBroker() *broker { return &broker{at: map[string]time.Time{}} }

func (b *broker) Publish(_ string, msgs ...*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range msgs {
		if _, known := b.at[string(m.Payload)]; !known {
			b.at[string(m.Payload)] = time.Now()
		}
	}
	return nil
}

func (b *broker) Close() error { return nil }

func (b *broker) has(payload string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.at[payload].IsZero()
}

func (b *broker) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.at)
}

// databaseURL is the DSN of the shared server, as its owner.
func databaseURL(t *testing.T) string { return devtest.Pool(t).Config().ConnString() }

// run runs a fleet until stop is called or the test ends.
func run(t *testing.T, p fleet.Provider, b message.Publisher, cfg fleet.Config) (f *fleet.Fleet, stop func()) {
	t.Helper()
	if cfg.Relay.Logger == nil {
		cfg.Relay.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	f, err := fleet.New(p, b, cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return f, stop
}

// eventually leaves time to a slow machine.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, time.Minute, 20*time.Millisecond, what)
}

// states counts a fleet's databases by state.
func states(f *fleet.Fleet) map[string]int {
	found := map[string]int{}
	for _, s := range f.Status() {
		found[s.State]++
	}
	return found
}
