package outbox_test

import (
	"context"
	"log/slog"
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

const topic = "labour.completed"

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

func newMessage(ctx context.Context, key, payload string) *message.Message {
	msg := message.NewMessageWithContext(ctx, outbox.NewID(), []byte(payload))
	transport.SetKey(msg, key)
	return msg
}

// publish commits one event.
func (f *fixture) publish(key, payload string) {
	require.NoError(f.t, pgtx.Run(f.t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		return f.publisher.Publish(topic, newMessage(ctx, key, payload))
	}))
}

// publishMany commits n events at once; the payload, or its beginning, is the key.
func (f *fixture) publishMany(topic string, n int, payload func(i int) string) {
	require.NoError(f.t, pgtx.Run(f.t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		msgs := make([]*message.Message, n)
		for i := range msgs {
			p := payload(i)
			msgs[i] = newMessage(ctx, p[:min(len(p), 100)], p)
		}
		return f.publisher.Publish(topic, msgs...)
	}))
}

// rows counts what is unpublished, also among the failed events.
func (f *fixture) rows() (n int) {
	require.NoError(f.t, f.pool.QueryRow(context.Background(), `select (select count(*) from `+f.schema+`.outbox)
		+ (select count(*) from `+f.schema+`.outbox_failed where state <> 'discarded')`).Scan(&n))
	return n
}

// failed lists the failed events of a key, in order: "payload state attempts".
func (f *fixture) failed(key string) (lines []string) {
	rows, err := f.pool.Query(context.Background(), `select convert_from(payload, 'UTF8') || ' ' || state || ' ' || attempts
		from `+f.schema+`.outbox_failed where key = $1 order by id`, key)
	require.NoError(f.t, err)
	lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(f.t, err)
	return lines
}

// command is what "millrace outbox" does: it sets a flag, and tells the relays.
func (f *fixture) command(command, payload string) {
	tag, err := f.pool.Exec(context.Background(), `update `+f.schema+`.outbox_failed set command = $1 where payload = convert_to($2, 'UTF8')`, command, payload)
	require.NoError(f.t, err)
	require.EqualValues(f.t, 1, tag.RowsAffected())
	_, err = f.pool.Exec(context.Background(), `select pg_notify($1, '')`, f.schema+"_outbox")
	require.NoError(f.t, err)
}

func (f *fixture) newRelay(p message.Publisher, cfg outbox.RelayConfig) *outbox.Relay {
	cfg.Schema = f.schema
	cfg.Logger = slog.New(slog.NewTextHandler(f.t.Output(), nil))
	r, err := outbox.NewRelay(f.pool, p, cfg)
	require.NoError(f.t, err)
	return r
}

// run runs the relay until stop is called or the test ends.
func (f *fixture) run(r *outbox.Relay) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(f.t, <-done)
		}
	}
	f.t.Cleanup(stop)
	return stop
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, 2*time.Minute, 20*time.Millisecond, what)
}
