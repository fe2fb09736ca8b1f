package framework_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// viaProxies puts a proxy before the world's database and one before each of its brokers.
func (w *world) viaProxies(cfg *framework.Config) (database *devtest.Proxy, brokers []*devtest.Proxy) {
	server, err := pgxpool.ParseConfig(cfg.Postgres.DSN)
	require.NoError(w.t, err)
	address := fmt.Sprintf("%s:%d", server.ConnConfig.Host, server.ConnConfig.Port)
	database = devtest.NewProxy(w.t, address)
	require.Contains(w.t, cfg.Postgres.DSN, address)
	cfg.Postgres.DSN = strings.Replace(cfg.Postgres.DSN, address, database.Address(), 1)
	if cfg.Broker == "pubsub" {
		brokers = []*devtest.Proxy{devtest.NewProxy(w.t, devtest.Start(w.t, devstack.PubSub).PubSubHost())}
		cfg.Drivers = []transport.Driver{pubsub.NewDriver(pubsub.Config{ClientOptions: emulated(brokers[0].Address())})}
		return database, brokers
	}
	by := map[string]string{}
	for _, broker := range devtest.Start(w.t, devstack.Kafka).KafkaBrokers() {
		p := devtest.NewProxy(w.t, broker)
		brokers, by[broker] = append(brokers, p), p.Address()
	}
	cfg.Drivers = []transport.Driver{kafka.NewDriver(kafka.Config{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, by[address]) // "" is nobody's
	}})}
	return database, brokers
}

// A service outlives an outage of its broker, in which it takes requests, and one of its database; /readyz tells what is
// away, and that it is back, and nothing is lost or done twice.
func TestOutages(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"pubsub", "kafka"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, broker)
			cfg := w.config()
			database, brokers := w.viaProxies(&cfg)
			svc := w.service(cfg)
			w.labour(svc, make(chan framework.Event, 10))
			stop := w.start(svc)
			url := "http://" + svc.Address() + "/labours/%d/complete"
			away := func(names ...string) {
				t.Helper()
				var r readiness
				require.Eventually(t, func() bool {
					code, body := get(t, svc, "/readyz", nil)
					for _, p := range append(slices.Clone(brokers), database) {
						assert.NotContains(t, body, p.Address(), "errors of drivers are for the log: everybody may ask")
					}
					r = readiness{}
					require.NoError(t, json.Unmarshal([]byte(body), &r))
					problems := r.problems()
					for _, name := range names {
						delete(problems, name)
					}
					return len(problems) == 0 && len(r.problems()) == len(names) && (code == http.StatusOK) == !slices.Contains(names, "postgres")
				}, 2*wait, 100*time.Millisecond, "want problems with %v alone", names)
			}
			away()

			for _, p := range brokers {
				p.Refuse()
			}
			away("broker")
			require.Equal(t, http.StatusOK, post(t, fmt.Sprintf(url, 1)), "the outbox takes it")
			assert.Equal(t, 1, w.get(`select count(*) from {s}.outbox`))
			for _, p := range brokers {
				require.NoError(t, p.Accept())
			}
			away()

			database.Refuse()
			away("postgres", "schema", "relays", "backlog")
			code, _ := get(t, svc, "/healthz", nil)
			assert.Equal(t, http.StatusOK, code, "no restart mends a database")
			code, metrics := get(t, svc, "/metrics", nil)
			assert.Equal(t, http.StatusOK, code)
			assert.Contains(t, metrics, "db_client_connection_max")
			assert.Equal(t, http.StatusConflict, post(t, fmt.Sprintf(url, 2)))
			require.NoError(t, database.Accept())
			away()

			database.Freeze() // nobody says that it is away
			away("postgres", "schema", "relays", "backlog")
			database.Thaw()
			away()
			require.Equal(t, http.StatusOK, post(t, fmt.Sprintf(url, 3)))
			require.Eventually(t, func() bool { return w.get(`select sum(thanks) from {s}.labours`) == 2 }, 3*wait, 100*time.Millisecond,
				"Google's emulator sends to streams that are gone, and waits for an ack deadline then")
			stop()
			assert.Equal(t, 2, w.get(`select count(*) from {s}.notifications`))
			assert.Equal(t, 2, w.get(`select sum(thanks) from {s}.labours`))
		})
	}
}

// A service stays ready in an outage of its broker, however long, and says why its events wait; one that requires the broker does
// not.
func TestReadyInOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pubsub")
	cfg := w.config()
	_, brokers := w.viaProxies(&cfg)
	cfg.Health.MaxBacklogAge, cfg.Health.MaxUnrelayed = time.Second, time.Second
	strict := cfg
	strict.Health.Require = []string{"broker"}
	svc, other := w.service(cfg), w.service(strict)
	w.start(svc)
	w.start(other)
	ask := func(svc *framework.Service) (code int, problems map[string]string) {
		code, body := get(t, svc, "/readyz", nil)
		var r readiness
		require.NoError(t, json.Unmarshal([]byte(body), &r))
		return code, r.problems()
	}
	for _, s := range []*framework.Service{svc, other} {
		w.eventually("ready", func() bool { code, problems := ask(s); return code == http.StatusOK && len(problems) == 0 })
	}
	for _, p := range brokers {
		p.Refuse()
	}
	require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		return publish(ctx, w.topic("one"), "key", "value")
	}))
	w.eventually("an outage that lasts", func() bool {
		code, problems := ask(svc)
		return code == http.StatusOK && strings.Contains(problems["broker"], "pubsub does not answer") && strings.Contains(problems["backlog"], "events wait for more than 1s")
	})
	w.eventually("a service that requires its broker", func() bool { code, _ := ask(other); return code == http.StatusServiceUnavailable })
	for _, p := range brokers {
		require.NoError(t, p.Accept())
	}
	require.Eventually(t, func() bool { code, problems := ask(other); return code == http.StatusOK && len(problems) == 0 }, 2*wait, 100*time.Millisecond)
}

// A service whose database is away when it is to stop ends all the same.
func TestStopInAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pubsub")
	cfg := w.config()
	cfg.ShutdownTimeout = 5 * time.Second
	database, brokers := w.viaProxies(&cfg)
	svc := w.service(cfg)
	told := make(chan framework.Event, 10)
	w.labour(svc, told)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := runs(ctx, svc)
	next(t, svc.Running())
	require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		return publish(ctx, w.topic("labour.completed"), "1", labourCompleted{LabourID: 1, Mother: "Mother 1"})
	}))
	next(t, told)
	database.Refuse()
	brokers[0].Refuse()
	cancel()
	err := next(t, ended)
	assert.ErrorContains(t, err, "note the clean stop", "what could not be told to the database")
}

// A service that is told to stop while it waits for a broker does not wait any longer.
func TestStopWhileSubscribing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kafka")
	cfg := w.config()
	cfg.ShutdownTimeout = time.Second
	_, brokers := w.viaProxies(&cfg)
	svc := w.service(cfg)
	require.NoError(t, svc.AddHandler(w.name("ignore"), w.topic("numbers"), ignore))
	for _, p := range brokers {
		p.Freeze()
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := runs(ctx, svc)
	cancel()
	require.NoError(t, next(t, ended))
}
