package framework_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/internal/quietport"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/retry"
)

// A service that stops answers the requests in hand, and what they have published is there; it takes no others.
func TestStopFinishesRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Outbox.Relay = framework.Apart // so that what is published stays where it can be seen
	svc := w.service(cfg)
	begun, goOn, status := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	svc.HTTP().HandleFunc("POST /slow", func(rw http.ResponseWriter, r *http.Request) {
		close(begun)
		<-goOn
		if err := svc.Tx(r.Context(), func(ctx context.Context, _ pgx.Tx) error { return publish(ctx, "a.topic", "", 1) }); err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
		}
	})
	url := "http://" + svc.Address() + "/slow"
	stop := w.start(svc)
	go func() { status <- post(t, url) }()
	next(t, begun)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	w.eventually("a service that takes no requests", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+svc.Address()+"/nothing", http.NoBody)
		require.NoError(t, err)
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		return err != nil
	})
	close(goOn)
	assert.Equal(t, http.StatusOK, next(t, status))
	next(t, stopped)
	assert.Equal(t, 1, w.get(`select count(*) from {s}.outbox`))
}

// A handler that does not end in time is left, which is an error; its event is undone and comes back.
func TestStopLeavesWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"memory", "pubsub"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, name)
			cfg := w.config()
			cfg.ShutdownTimeout, cfg.Claim.HandlerTimeout = 100*time.Millisecond, 2*time.Second
			release := make(chan struct{})
			svc := w.service(cfg)
			begun := make(chan struct{}, 10)
			require.NoError(t, handle(svc, w.name("hang"), w.topic("numbers"), func(ctx context.Context, n int) error {
				begun <- struct{}{}
				<-release
				return ctx.Err()
			}))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := runs(ctx, svc)
			next(t, svc.Running())
			require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
				return publish(ctx, w.topic("numbers"), "", 1)
			}))
			next(t, begun)
			cancel()
			assert.ErrorContains(t, next(t, ended), "handlers of events have not ended within 2s (Config.ShutdownTimeout, or the longest timeout of a handler)")
			close(release)
		})
	}
}

// A handler may take its timeout to end, also if that is longer than ShutdownTimeout: it has its effect, and the stop is no error.
func TestStopWaitsForTheTimeoutOfHandlers(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(cfg *framework.Config, handler string){
		"of all": func(cfg *framework.Config, _ string) { cfg.Claim.HandlerTimeout = wait },
		"of one": func(cfg *framework.Config, handler string) {
			cfg.Claim.HandlerTimeout = 100 * time.Millisecond
			cfg.Handlers = map[string]framework.Handler{handler: {HandlerConfig: claim.HandlerConfig{Timeout: wait}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "memory")
			cfg := w.config()
			cfg.ShutdownTimeout = 100 * time.Millisecond
			set(&cfg, w.name("slow"))
			svc := w.service(cfg)
			begun, goOn := make(chan struct{}, 10), make(chan struct{})
			require.NoError(t, handle(svc, w.name("slow"), w.topic("numbers"), func(ctx context.Context, n int) error {
				begun <- struct{}{}
				<-goOn
				return pgtx.Queue(ctx, `create table `+w.schema+`.handled ()`)
			}))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := runs(ctx, svc)
			next(t, svc.Running())
			require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
				return publish(ctx, w.topic("numbers"), "", 1)
			}))
			next(t, begun)
			cancel()
			select {
			case err := <-ended:
				assert.Fail(t, "the service has not waited for the handler", "%v", err)
			case <-time.After(10 * cfg.ShutdownTimeout):
			}
			close(goOn)
			require.NoError(t, next(t, ended))
			assert.Equal(t, 1, w.get(`select count(to_regclass('{s}.handled'))`))
		})
	}
}

// A service whose handlers could not be attached is closed by Close.
func TestAttachThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	policy := retry.Policy{{}}
	cfg.Handlers = map[string]framework.Handler{w.name("ordered"): {Ordered: true, HandlerConfig: claim.HandlerConfig{Retry: policy}}}
	svc := w.service(cfg)
	require.NoError(t, svc.AddHandler(w.name("ordered"), w.topic("numbers"), ignore))
	policy[0].MaxAttempts = -1 // the claim of the handler, which is made now, refuses that
	require.ErrorContains(t, svc.Attach(func(string) message.Subscriber { return hanging{} }), "MaxAttempts is -1")
	require.NoError(t, svc.Close())
	require.ErrorContains(t, svc.Pool().Ping(t.Context()), "closed pool")
	require.ErrorIs(t, svc.Run(t.Context()), framework.ErrEnded)
}

// runs runs the service, and tells how that ended.
func runs(ctx context.Context, svc *framework.Service) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- svc.Run(ctx) }()
	return ended
}

// A part that fails for good ends the service, with its error.
func TestPartThatFailsEndsTheService(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	svc := w.service(w.config())
	_, err := w.pool.Exec(t.Context(), `drop schema `+w.schema+` cascade; create schema `+w.schema)
	require.NoError(t, err)
	assert.ErrorContains(t, next(t, runs(t.Context(), svc)), `run "millrace migrate up"`)
}

// newIdle returns a service with so many handlers, whose end no test waits for if it takes ShutdownTimeout.
func newIdle(t *testing.T, handlers int) (*world, *framework.Service) {
	t.Helper()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.ShutdownTimeout = 2 * wait
	svc := w.service(cfg)
	for n := range handlers {
		require.NoError(t, svc.AddHandler(w.name(fmt.Sprintf("ignore-%d", n)), w.topic("numbers"), ignore))
	}
	return w, svc
}

// A service that is told to stop while it starts ends at once: Watermill's router, when it is closed before it runs, waits
// for handlers that have never begun, for as long as ShutdownTimeout; and without handlers it ends by nothing but that.
func TestStopBeforeTheStart(t *testing.T) {
	t.Parallel()
	for name, handlers := range map[string]int{"a handler": 1, "no handler": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, svc := newIdle(t, handlers)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			svc.Router().AddPlugin(func(*message.Router) error { // which the router asks before it begins
				cancel()
				for closed := error(nil); closed == nil; _, closed = svc.Transport().Publisher() {
					<-time.After(time.Millisecond)
				}
				return nil
			})
			require.NoError(t, next(t, runs(ctx, svc)))
		})
	}
}

// A subscriber whose broker does not answer keeps no service from ending.
func TestStopWhileTheRouterSubscribes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	svc := w.service(w.config())
	hangs := hanging{make(chan struct{}, 1)}
	svc.Router().AddConsumerHandler(w.name("hang"), "a.topic", hangs, ignore)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := runs(ctx, svc)
	next(t, hangs.begun)
	cancel()
	require.NoError(t, next(t, ended))
}

// hanging is a subscriber that waits for its broker until its context ends.
type hanging struct{ begun chan struct{} }

func (h hanging) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	h.begun <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hanging) Close() error { return nil }

// A router that cannot subscribe ends the service at once, with the reason.
func TestSubscriptionThatFails(t *testing.T) {
	t.Parallel()
	_, svc := newIdle(t, 1)
	svc.Router().AddSubscriberDecorators(func(message.Subscriber) (message.Subscriber, error) { return nil, errors.New("no such subscriber") })
	require.ErrorContains(t, next(t, runs(t.Context(), svc)), "no such subscriber")
}

// A part that fails while handlers are there ends the service at once, too.
func TestPartThatFailsBeforeTheHandlersRun(t *testing.T) {
	t.Parallel()
	w, svc := newIdle(t, 1)
	_, err := w.pool.Exec(t.Context(), `drop schema `+w.schema+` cascade; create schema `+w.schema)
	require.NoError(t, err)
	assert.ErrorContains(t, next(t, runs(t.Context(), svc)), `run "millrace migrate up"`)
}

// While load balancers are to notice that a service stops, it says so, and takes requests.
func TestStopLingers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.HTTP.Linger = new(5 * time.Second)
	svc := w.service(cfg)
	svc.HTTP().HandleFunc("POST /do", func(rw http.ResponseWriter, r *http.Request) {
		if err := svc.Tx(r.Context(), func(ctx context.Context, _ pgx.Tx) error { return publish(ctx, "a.topic", "", 1) }); err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
		}
	})
	stop := w.start(svc)
	w.eventually("a service that is ready", func() bool {
		code, _ := get(t, svc, "/readyz", nil)
		return code == http.StatusOK
	})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	var body string
	require.Eventually(t, func() bool {
		var code int
		code, body = get(t, svc, "/readyz", nil)
		return code == http.StatusServiceUnavailable
	}, wait, time.Millisecond)
	assert.Contains(t, body, "the service stops")
	assert.Equal(t, http.StatusOK, post(t, "http://"+svc.Address()+"/do"))
	next(t, stopped)
}

// What New has begun when it fails or its context ends is undone: goleak sees the rest.
func TestNewThatFailsTakesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	address, err := quietport.Address(t.Context())
	require.NoError(t, err)
	cfg := w.config()
	cfg.HTTP.Address = address
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = framework.New(ctx, cfg)
	require.ErrorIs(t, err, context.Canceled)
	cfg.Postgres.DSN = "postgres://me:secret@" + nobody + "/db"
	_, err = framework.New(t.Context(), cfg)
	require.Error(t, err)

	again, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

// A service that is not run gives back what it has taken, and is not to be run any more.
func TestCloseWithoutRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	svc := w.service(w.config())
	require.NoError(t, svc.Close())
	require.NoError(t, svc.Close())
	require.ErrorIs(t, svc.Run(t.Context()), framework.ErrEnded)
	require.ErrorContains(t, svc.AddHandler("late", "numbers", ignore), "has ended")
	require.Error(t, svc.Pool().Ping(t.Context()))
}
