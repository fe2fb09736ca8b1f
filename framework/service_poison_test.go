package framework_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/retry"
)

// What no handler can take is dead, with its reason: at once where the payload is not of the type, and after its attempts
// where the handler panics. The others go on.
func TestPoison(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	svc := w.service(w.config())
	good := make(chan int, 10)
	require.NoError(t, handle(svc, w.name("number"), w.topic("number"), func(_ context.Context, n int) error {
		if n == 7 {
			panic("not a seven")
		}
		good <- n
		return nil
	}))
	require.NoError(t, handle(svc, w.name("proto"), w.topic("proto"), func(_ context.Context, n *wrapperspb.Int64Value) error {
		good <- int(n.Value)
		return nil
	}))
	w.start(svc)
	require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		raw := func(topic string, payload []byte) error {
			return svc.Outbox().Publish(w.topic(topic), message.NewMessageWithContext(ctx, outbox.NewID(), payload))
		}
		return errors.Join(
			publish(ctx, w.topic("number"), "", 7), publish(ctx, w.topic("number"), "", json.RawMessage(`"seven"`)), raw("number", nil),
			raw("proto", []byte("\xff\xff")), publish(ctx, w.topic("number"), "", 8), publish(ctx, w.topic("proto"), "", wrapperspb.Int64(9)),
		)
	}))
	assert.ElementsMatch(t, []int{8, 9}, []int{next(t, good), next(t, good)})
	var dead []deadletter.Event
	w.eventually("four dead letters", func() bool {
		var err error
		dead, err = deadletter.List(t.Context(), w.pool, w.schema, deadletter.Listing{Selection: deadletter.Selection{States: []string{"dead"}}})
		require.NoError(t, err)
		return len(dead) == 4
	})
	texts := map[string]string{}
	for _, d := range dead {
		shown, err := deadletter.Show(t.Context(), w.pool, w.schema, d.EventID, d.Consumer)
		require.NoError(t, err)
		require.Len(t, shown, 1)
		texts[string(shown[0].Payload)] = d.Reason + ": " + d.Error
	}
	assert.Contains(t, texts["7"], "attempts: the handler panicked: not a seven")
	assert.Contains(t, texts[`"seven"`], "permanent: decode the payload as int: ")
	assert.Contains(t, texts[""], "permanent: decode the payload as int: ")
	assert.Contains(t, texts["\xff\xff"], "permanent: decode the payload as *wrapperspb.Int64Value: ")
}

// A handler's rules and its timeout come from its section of the configuration; other handlers have those of the claim.
func TestPolicyOfAHandler(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Claim.Retry = retry.Policy{{ErrorText: "refused", Dead: true}}
	cfg.Handlers = map[string]framework.Handler{w.name("one"): {HandlerConfig: claim.HandlerConfig{Timeout: time.Hour, Retry: retry.Policy{{ErrorText: "refused", Ignore: true}}}}}
	svc := w.service(cfg)
	left := make(chan time.Duration, 10)
	for _, name := range []string{"one", "two"} {
		require.NoError(t, handle(svc, w.name(name), w.topic("number"), func(ctx context.Context, _ int) error {
			deadline, _ := ctx.Deadline()
			left <- time.Until(deadline)
			return errors.New("refused")
		}))
	}
	w.start(svc)
	require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error { return publish(ctx, w.topic("number"), "", 1) }))
	times := []time.Duration{next(t, left), next(t, left)}
	slices.Sort(times)
	assert.Less(t, times[0], time.Minute)
	assert.Greater(t, times[1], time.Minute)
	w.eventually("a dead letter of the other handler alone, and two records", func() bool {
		return w.get(`select count(*) from {s}.claim_failed where state = 'dead' and reason = 'permanent'`) == 1 && w.get(`select count(*) from {s}.processed`) == 2
	})
	assert.Empty(t, left, "each was called once")
}

// What a handler needs is out: its consumer pauses, and /readyz says why, with 200. The service stops at once in a pause, and the next
// one handles every event.
func TestCircuitBreakerOfAService(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"memory", "pubsub", "kafka"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			const events = 20
			w := newWorld(t, broker)
			run := func(bill func() error) (svc *framework.Service, stop func()) {
				cfg := w.config()
				cfg.Claim.MaxAttempts = 5
				breaker := claim.Breaker{Failures: 3, Pause: 20 * time.Millisecond, MaxPause: 100 * time.Millisecond}
				if cfg.Claim.Breaker = breaker; broker == "kafka" { // there it is the handler's
					cfg.Claim.Breaker = claim.Breaker{}
					cfg.Handlers = map[string]framework.Handler{w.name("bill"): {HandlerConfig: claim.HandlerConfig{Breaker: breaker}}}
				}
				svc = w.service(cfg)
				require.NoError(t, handle(svc, w.name("bill"), w.topic("bill"), func(context.Context, int) error { return bill() }))
				return svc, w.start(svc)
			}
			var calls atomic.Int32
			svc, stop := run(func() error {
				calls.Add(1)
				return errors.New("the provider does not answer")
			})
			require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) (err error) {
				for n := range events {
					err = errors.Join(err, publish(ctx, w.topic("bill"), strconv.Itoa(n), n))
				}
				return err
			}))
			w.eventually("a pause, and some tries", func() bool {
				code, body := get(t, svc, "/readyz", nil)
				var r readiness
				require.NoError(t, json.Unmarshal([]byte(body), &r))
				if len(r.problems()) > 0 || calls.Load() < 10 {
					return false
				}
				require.Equal(t, http.StatusOK, code)
				said := r.Checks[len(r.Checks)-1]
				assert.NotContains(t, said.Problem, "the provider does not answer", "everybody may ask")
				return said.Name == "handlers" && strings.Contains(said.Problem, "/"+w.name("bill")+" has been paused for")
			})
			began := time.Now()
			stop()
			assert.Less(t, time.Since(began), 20*time.Second, "it does not wait for the end of the pause")
			if broker == "memory" { // its events end with the process
				return
			}
			var done atomic.Int32
			run(func() error { done.Add(1); return nil })
			w.eventually("every event is handled", func() bool { return done.Load() == events })
			assert.Zero(t, w.get(`select count(*) from {s}.claim_failed where state = 'dead'`))
		})
	}
}

// Nothing is published outside of a transaction, or by one that is rolled back.
func TestPublishNeedsACommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Outbox.Relay = framework.Apart
	svc := w.service(cfg)
	svc.HTTP().HandleFunc("POST /bare", func(_ http.ResponseWriter, r *http.Request) {
		assert.ErrorIs(t, publish(r.Context(), "numbers", "", 1), outbox.ErrNoTransaction)
	})
	w.start(svc)
	require.Equal(t, http.StatusOK, post(t, "http://"+svc.Address()+"/bare"))
	undone := errors.New("undone")
	require.ErrorIs(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		require.NoError(t, publish(ctx, "numbers", "", 1))
		return undone
	}), undone)
	assert.Panics(t, func() {
		_ = svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
			require.NoError(t, publish(ctx, "numbers", "", 1))
			panic("undone")
		})
	})
	assert.Zero(t, w.get(`select count(*) from {s}.outbox`))
}
