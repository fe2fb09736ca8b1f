package outboxadmin_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// fixture is an outbox in a schema of its own.
type fixture struct {
	t         testing.TB
	pool      *pgxpool.Pool
	schema    string
	publisher *outbox.Publisher
}

func newFixture(t testing.TB) *fixture {
	f := &fixture{t: t, pool: devtest.Pool(t), schema: devtest.Schema(t)}
	require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
	var err error
	f.publisher, err = outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema})
	require.NoError(t, err)
	return f
}

func (f *fixture) exec(sql string) {
	_, err := f.pool.Exec(context.Background(), strings.ReplaceAll(sql, "{schema}", f.schema))
	require.NoError(f.t, err)
}

// publish commits one event of topic "topic".
func (f *fixture) publish(key, payload string) { f.publishTo("topic", key, payload) }

func (f *fixture) publishTo(topic, key, payload string) {
	require.NoError(f.t, pgtx.Run(f.t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		msg := message.NewMessageWithContext(ctx, outbox.NewID(), []byte(payload))
		transport.SetKey(msg, key)
		return f.publisher.Publish(topic, msg)
	}))
}

// relay runs a relay until stop is called or the test ends.
func (f *fixture) relay(p message.Publisher, cfg outbox.RelayConfig) (stop func()) {
	cfg.Schema, cfg.Logger = f.schema, slog.New(slog.NewTextHandler(f.t.Output(), nil))
	relay, err := outbox.NewRelay(f.pool, p, cfg)
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(f.t, <-done)
	})
	f.t.Cleanup(stop)
	return stop
}

// rows counts what is unpublished, failed events among it.
func (f *fixture) rows() (n int) {
	require.NoError(f.t, f.pool.QueryRow(context.Background(), `select (select count(*) from `+f.schema+`.outbox)
		+ (select count(*) from `+f.schema+`.outbox_failed where state <> 'discarded')`).Scan(&n))
	return n
}

// broker counts events.
type broker struct{ atomic.Int64 }

func (b *broker) Publish(_ string, msgs ...*message.Message) error {
	b.Add(int64(len(msgs)))
	return nil
}

func (b *broker) Close() error { return nil }

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, time.Minute, 5*time.Millisecond, what)
}
