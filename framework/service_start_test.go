package framework_test

import (
	"context"
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
			[]string{"version 0 of outbox", "version 0 of claim", "version 0 of effect", "version 0 of idempotencykey", `run "millrace migrate up"`, "postgres.migrate"},
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
			[]string{"max_connections) is 12: want 27 or more", "20 for handler notify", "5 for the relay"},
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
				Service: "labour", Broker: c.driver.Name, HTTP: framework.HTTP{Address: "127.0.0.1:0"},
				Postgres: framework.Postgres{DSN: dsn, Schema: devtest.Schema(t), Migrate: true},
			}
			c.change(&cfg)
			if cfg.Postgres.DSN == dsn && cfg.Postgres.Migrate { // that takes what it takes
				migrated, err := framework.New(t.Context(), framework.Config{Service: "m", Broker: "memory", HTTP: framework.HTTP{Address: "127.0.0.1:0"}, Postgres: framework.Postgres{DSN: dsn, Schema: cfg.Postgres.Schema, Migrate: true}}, memory)
				require.NoError(t, err)
				require.NoError(t, migrated.Close())
			}
			began := time.Now()
			svc, err := framework.New(t.Context(), cfg, c.driver)
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

// Tables of an older release are an error that names the command, too.
func TestOldSchema(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	require.NoError(t, w.service(cfg).Close()) // which has migrated
	_, err := w.pool.Exec(t.Context(), `delete from `+w.schema+`.migration where component = 'claim' and version > 2`)
	require.NoError(t, err)
	cfg.Postgres.Migrate = false
	_, err = framework.New(t.Context(), cfg, w.drivers...)
	require.ErrorContains(t, err, "version 2 of claim")
	require.ErrorContains(t, err, `run "millrace migrate up"`)
	require.NotContains(t, err.Error(), "of outbox", "which is as it should be")
}

// What is wrong with a handler is told when it is added.
func TestWrongHandlers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	svc := w.service(w.config())
	require.NoError(t, svc.AddHandler("notify", "labour.completed", ignore))
	require.ErrorContains(t, svc.AddHandler("notify", "labour.begun", ignore), `one of that name, for topic "labour.completed"`)
	require.ErrorContains(t, svc.AddHandler("two words", "labour.completed", ignore), "letters, digits")
	require.ErrorContains(t, svc.AddHandler("nowhere", "", ignore), "the topic is empty")
	require.ErrorContains(t, framework.Handle[int](svc, "nothing", "labour.completed", nil), "the function is nil")
	require.ErrorContains(t, framework.Handle[wrapperspb.Int64Value](svc, "copies", "labour.completed", nil), "want *wrapperspb.Int64Value")
	w.start(svc)
	require.ErrorContains(t, svc.AddHandler("late", "labour.completed", ignore), "add handlers before Run")
	require.ErrorIs(t, svc.Run(t.Context()), framework.ErrEnded)
	require.ErrorIs(t, framework.Publish(t.Context(), "labour.completed", "", 1), framework.ErrNoService)
}
