package framework_test

import (
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/millrace-go/millrace/framework"
)

// emulated is for Google's emulator, or what stands in its place.
func emulated(host string) []option.ClientOption {
	return []option.ClientOption{option.WithEndpoint(host), option.WithoutAuthentication(), option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials()))}
}

// nobody is an address at which nothing listens.
const nobody = "127.0.0.1:1"

func ignore(*message.Message) error { return nil }

// Where the tables of one part are too old, the error names that part and the command.
func TestOldSchema(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	require.NoError(t, w.service(cfg).Close()) // which has migrated
	_, err := w.pool.Exec(t.Context(), `delete from `+w.schema+`.migration where component = 'claim'`)
	require.NoError(t, err)
	cfg.Postgres.Migrate = false
	_, err = framework.New(t.Context(), cfg)
	require.ErrorContains(t, err, "version 0 of claim")
	require.ErrorContains(t, err, `run "millrace migrate up"`)
	require.NotContains(t, err.Error(), "of outbox", "which is as it should be")
}

// What is wrong with a handler is told when it is added.
func TestWrongHandlers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Handlers = map[string]framework.Handler{"copy": {Group: "labour.notify"}}
	svc := w.service(cfg)
	require.NoError(t, svc.AddHandler("notify", "labour.completed", ignore))
	require.ErrorContains(t, svc.AddHandler("copy", "labour.completed", ignore), `handler "notify" has its group, "labour.notify"`)
	require.ErrorContains(t, svc.AddHandler("notify", "labour.begun", ignore), `one of that name, for topic "labour.completed"`)
	require.ErrorContains(t, svc.AddHandler("two words", "labour.completed", ignore), "letters, digits")
	require.ErrorContains(t, svc.AddHandler("nowhere", "", ignore), "the topic is empty")
	require.ErrorContains(t, handle[int](svc, "nothing", "labour.completed", nil), "the function is nil")
	require.ErrorContains(t, handle[wrapperspb.Int64Value](svc, "copies", "labour.completed", nil), "want *wrapperspb.Int64Value")
	w.start(svc)
	require.ErrorContains(t, svc.AddHandler("late", "labour.completed", ignore), "add handlers before Run")
	require.ErrorIs(t, svc.Run(t.Context()), framework.ErrEnded)
	require.ErrorIs(t, publish(t.Context(), "labour.completed", "", 1), framework.ErrNoService)
}

// A service with an ordered handler has two claims, which see each other start, and so do two processes that start together:
// that looks like no killed process. One that was killed is reported.
func TestCleanFirstStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	var log output
	begin := func() (stop func()) {
		cfg := w.config()
		cfg.Claim.Logger, cfg.Log.Handler = nil, slog.NewTextHandler(&log, nil)
		cfg.Handlers = map[string]framework.Handler{w.name("in-order"): {Ordered: true}}
		svc := w.service(cfg)
		require.NoError(t, svc.AddHandler(w.name("in-order"), w.topic("numbers"), ignore))
		require.NoError(t, svc.AddHandler(w.name("at-will"), w.topic("numbers"), ignore))
		return w.start(svc)
	}
	const seen = `select count(*) from {s}.claim_run where beat_at > started_at + interval '1 second'` // its first look came before that
	for range 2 {
		first, second := begin(), begin()
		w.eventually("four claims that have seen each other", func() bool { return w.get(seen) == 4 })
		first()
		second()
		require.Zero(t, w.get(`select count(*) from {s}.claim_run`))
	}
	assert.False(t, log.has("killed"))

	_, err := w.pool.Exec(t.Context(), `insert into `+w.schema+`.claim_run (service, name, beat_at) values ('labour', 'killed', now() - interval '1 minute')`)
	require.NoError(t, err)
	begin()
	w.eventually("a warning", func() bool { return log.has("a process may have been killed") })
}
