package framework_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/pubsub"
)

// emulated is for Google's emulator, or what stands in its place.
func emulated(host string) []option.ClientOption {
	return []option.ClientOption{option.WithEndpoint(host), option.WithoutAuthentication(), option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials()))}
}

// nobody is an address at which nothing listens.
const nobody = "127.0.0.1:1"

// with is the DSN with a parameter more.
func with(dsn, parameter string) string {
	separator := "?"
	if strings.Contains(dsn, "?") {
		separator = "&"
	}
	return dsn + separator + parameter
}

func ignore(*message.Message) error { return nil }

// What keeps a service from starting is told within 5 s, together with what to do.
func TestTroubleAtTheStart(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts, and never answers
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	dsn := devtest.Start(t, devstack.Postgres).PostgresDSN()
	memory := transport.MemoryDriver
	missing := devtest.Topic(t)
	for name, c := range map[string]struct {
		change func(*framework.Config)
		driver transport.Driver
		want   []string
	}{
		"a port in use": {
			func(c *framework.Config) { c.HTTP.Address = taken.Addr().String() }, memory,
			[]string{"listen at " + taken.Addr().String(), "stop that one, or change Config.HTTP.Address (http.address)"},
		},
		"a port in use for operators": {
			func(c *framework.Config) { c.Admin.Address = taken.Addr().String() }, memory,
			[]string{"listen at " + taken.Addr().String(), "stop that one, or change Config.Admin.Address (admin.address)"},
		},
		"nobody's address": {
			func(c *framework.Config) { c.HTTP.Address = "192.0.2.1:80" }, memory, []string{"of this machine"},
		},
		"no database": {
			func(c *framework.Config) { c.Postgres.DSN = "postgres://me:secret@" + nobody + "/db" }, memory,
			[]string{"connect to PostgreSQL at " + nobody, "change Config.Postgres.DSN (postgres.dsn)"},
		},
		"a database that does not answer": {
			func(c *framework.Config) { c.Postgres.DSN = "postgres://me:secret@" + taken.Addr().String() + "/db" }, memory,
			[]string{"connect to PostgreSQL at " + taken.Addr().String()},
		},
		"another user": {
			func(c *framework.Config) {
				c.Postgres.DSN = strings.Replace(c.Postgres.DSN, "postgres:", "nobody:", 2)
				c.Postgres.DSN = strings.Replace(c.Postgres.DSN, "nobody://", "postgres://", 1)
			}, memory,
			[]string{"takes this user", "nobody"},
		},
		"no tables": {
			func(c *framework.Config) { c.Postgres.Migrate = false }, memory,
			[]string{"version 0 of outbox", "version 0 of claim", "version 0 of effect", "version 0 of idempotencykey", "version 0 of schedule", `run "millrace migrate up"`, "postgres.migrate"},
		},
		"no Kafka": {
			func(*framework.Config) {}, kafka.NewDriver(kafka.Config{Brokers: []string{nobody}}),
			[]string{"connect to the broker", "section kafka", nobody},
		},
		"no Pub/Sub": {
			func(*framework.Config) {}, pubsub.NewDriver(pubsub.Config{ProjectID: "nowhere", ClientOptions: emulated(nobody)}),
			[]string{"connect to the broker", "section pubsub"},
		},
		"a Kafka that does not answer": {
			func(*framework.Config) {}, kafka.NewDriver(kafka.Config{Brokers: []string{taken.Addr().String()}}),
			[]string{"connect to the broker", "section kafka", taken.Addr().String()},
		},
		"a Pub/Sub that does not answer": {
			func(*framework.Config) {}, pubsub.NewDriver(pubsub.Config{ProjectID: "nowhere", ClientOptions: emulated(taken.Addr().String())}),
			[]string{"connect to the broker", "section pubsub"},
		},
		"another driver": {
			func(c *framework.Config) { c.Broker = "kafka" }, memory, []string{"kafka", "its driver is not there"},
		},
		"few connections": {
			func(c *framework.Config) {
				c.Postgres.MaxConnections, c.Handlers = 12, map[string]framework.Handler{"notify": {Concurrency: 20}}
			}, memory,
			[]string{`Config.Handlers["notify"].Concurrency is 20, which needs 20 connections, and Config.Postgres.MaxConnections (12) leaves 5 for handlers`},
		},
		"few connections by the DSN": {
			func(c *framework.Config) { c.Postgres.DSN = with(c.Postgres.DSN, "pool_max_conns=7") }, memory,
			[]string{"max_connections) is 7: want 8 or more"},
		},
		"no room for the ledger": {
			func(c *framework.Config) { c.Effects.MaxConns = 100_000 }, memory,
			[]string{"the server lets this role have", "postgres.max_connections", "effects.max_conns"},
		},
		"no topic in Pub/Sub": {
			func(*framework.Config) {}, pubsub.NewDriver(pubsub.Config{
				ProjectID: devtest.Project(t), Resources: pubsub.CheckOnly, ClientOptions: emulated(devtest.Start(t, devstack.PubSub).PubSubHost()),
			}),
			[]string{`handler "notify"`, missing},
		},
		"no topic in Kafka": {
			func(*framework.Config) {}, kafka.NewDriver(kafka.Config{
				Brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers(), Topics: kafka.Topics{Missing: kafka.CheckOnly},
			}),
			[]string{`handler "notify"`, missing},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := framework.Config{
				Service: "labour", Broker: c.driver.Name, Drivers: []transport.Driver{c.driver}, HTTP: framework.HTTP{Address: "127.0.0.1:0"},
				Postgres: framework.Postgres{DSN: dsn, Schema: devtest.Schema(t), Migrate: true},
			}
			c.change(&cfg)
			if cfg.Postgres.DSN == dsn && cfg.Postgres.Migrate { // that takes what it takes
				migrated, err := framework.New(t.Context(), framework.Config{Service: "m", Broker: "memory", HTTP: framework.HTTP{Address: "127.0.0.1:0"}, Postgres: framework.Postgres{DSN: dsn, Schema: cfg.Postgres.Schema, Migrate: true}, Drivers: []transport.Driver{memory}})
				require.NoError(t, err)
				require.NoError(t, migrated.Close())
			}
			began := time.Now()
			svc, err := framework.New(t.Context(), cfg)
			if err == nil {
				require.NoError(t, svc.AddHandler("notify", missing, ignore))
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				err = svc.Run(ctx)
			}
			took := time.Since(began)
			require.Error(t, err)
			for _, want := range c.want {
				assert.ErrorContains(t, err, want)
			}
			assert.NotContains(t, err.Error(), "secret")
			assert.Less(t, took, 4*5*time.Second, "New promises 5 s; a busy machine takes longer")
		})
	}
}

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
