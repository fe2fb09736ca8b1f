package framework_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// pushed makes the world one whose subscriptions push.
func (w *world) pushed(push pubsub.Push) {
	w.drivers = []transport.Driver{pubsub.NewDriver(pubsub.Config{
		ClientOptions: emulated(devtest.Start(w.t, devstack.PubSub).PubSubHost()), Subscription: pubsub.SubscriptionConfig{Push: &push},
	})}
}

// A service that is configured for push serves the broker's requests with no code of its own. An event that fails comes again, and one
// that is pushed twice has one effect.
func TestPushIsServed(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]struct{ endpoint, strips, path, route string }{
		"a path":                     {endpoint: "/pub%20sub/v1", route: "/orders"},
		"the root":                   {path: "/", route: "POST /orders"},
		"a proxy that strips a path": {endpoint: "/public/pub%20sub", strips: "/public", path: "/pub sub", route: "/orders"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "pubsub")
			balancer := httptest.NewUnstartedServer(nil) // the endpoint is known before the service has its port
			w.pushed(pubsub.Push{Endpoint: "http://" + balancer.Listener.Addr().String() + at.endpoint, Path: at.path, AllowUnauthenticated: true})
			cfg := w.config()
			cfg.HTTP.WriteTimeout = 5 * time.Second
			svc := w.service(cfg)
			svc.Use(func(http.Handler) http.Handler { // a login, which Pub/Sub does not have
				return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusAccepted) })
			})
			proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: svc.Address()})
			var requests, cut atomic.Int64
			proxy.ErrorHandler = func(rw http.ResponseWriter, _ *http.Request, _ error) {
				cut.Add(1)
				rw.WriteHeader(http.StatusBadGateway)
			}
			balancer.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				http.StripPrefix(at.strips, proxy).ServeHTTP(rw, r)
			})
			balancer.Start()
			t.Cleanup(balancer.Close)
			svc.HTTP().HandleFunc(at.route, func(http.ResponseWriter, *http.Request) {})
			got := make(chan string, 10)
			var failed atomic.Bool
			require.NoError(t, handle(svc, w.name("bill"), w.topic("orders"), func(ctx context.Context, _ int) error {
				if failed.CompareAndSwap(false, true) {
					return assert.AnError
				}
				select { // longer than other answers may take
				case <-ctx.Done():
				case <-time.After(6 * time.Second):
				}
				got <- framework.EventFrom(ctx).ID
				return ctx.Err()
			}))
			stop := w.start(svc)
			require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
				return errors.Join(publish(ctx, w.topic("orders"), "", 1), publish(ctx, w.topic("orders"), "", 2))
			}))
			first, second := next(t, got), next(t, got)
			assert.NotEqual(t, first, second)
			assert.Positive(t, requests.Load(), "the events came by push, past the middleware")
			assert.Equal(t, http.StatusAccepted, post(t, "http://"+svc.Address()+"/orders"), "a route of the service's own")
			stop()
			assert.Empty(t, got)
			assert.Zero(t, cut.Load(), "requests without an answer")
		})
	}
}

// Nobody but Pub/Sub injects events.
func TestPushIsAuthenticated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pubsub")
	w.pushed(pubsub.Push{Endpoint: "https://labour.example/pubsub", ServiceAccount: "pubsub@labour.example"})
	svc := w.service(w.config())
	require.NoError(t, handle(svc, w.name("bill"), w.topic("orders"), func(context.Context, int) error {
		assert.Fail(t, "a stranger's event was handled")
		return nil
	}))
	w.start(svc)
	subscription := w.topic("orders") + ".labour." + w.name("bill")
	for path, want := range map[string]int{
		"/pubsub/" + subscription: http.StatusUnauthorized,
		"/pubsub/another":         http.StatusUnauthorized,
		"/" + subscription:        http.StatusNotFound,
	} {
		assert.Equal(t, want, post(t, "http://"+svc.Address()+path), path)
	}
}
