package framework_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
)

type price struct{ Cents int }

type quoted struct{ Euros int }

// tableless is a service on real Kafka that has no database, with a server for operators.
type tableless struct {
	*testing.T
	*framework.Service
	brokers []string
	prefix  string
}

func newTableless(t *testing.T) *tableless {
	t.Helper()
	s := &tableless{T: t, brokers: devtest.Start(t, devstack.Kafka).KafkaBrokers(), prefix: devtest.Topic(t)}
	cfg, err := framework.Load(file(t, fmt.Sprintf(`
service: %s
postgres: {disabled: true}
broker: kafka
kafka: {brokers: [%s], delivery: transactional, consumer: {retry: {min: 10ms, max: 50ms}}}
http: {address: "127.0.0.1:0"}
admin: {address: "127.0.0.1:0"}
claim: {max_attempts: 3}
handlers: {quote: {ordered: true}}
`, s.name(), strings.Join(s.brokers, ", "))), kafka.Driver)
	require.NoError(t, err)
	cfg.Health.Timeout = 20 * time.Second // of a busy machine
	s.Service, err = patientNew(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func (s *tableless) name() string { return strings.ReplaceAll(s.prefix, ".", "-") }

func (s *tableless) topic(name string) string { return s.prefix + "." + name }

// start runs the service until the test ends.
func (s *tableless) start() {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Service.Run(ctx) }()
	s.Cleanup(func() {
		cancel()
		assert.NoError(s, <-ended)
	})
	select {
	case <-s.Running():
	case err := <-ended:
		ended <- nil
		require.NoError(s, err)
		require.FailNow(s, "the service has ended")
	}
}

// outside is the broker for what the service has no part in.
func (s *tableless) outside() *kafka.Transport {
	s.Helper()
	k, err := kafka.New(s.Context(), kafka.Config{Brokers: s.brokers})
	require.NoError(s, err)
	s.Cleanup(func() { assert.NoError(s, k.Close()) })
	return k
}

// send publishes payloads of one key.
func send(t *testing.T, k *kafka.Transport, topic string, payloads ...string) {
	t.Helper()
	p, err := k.PlainPublisher()
	require.NoError(t, err)
	for _, payload := range payloads {
		msg := message.NewMessage("", []byte(payload))
		msg.UUID = fmt.Sprintf("%s-%s", topic, payload)
		transport.SetKey(msg, "a")
		require.NoError(t, p.Publish(topic, msg))
	}
}

// ask returns the code and the body of an answer.
func (s *tableless) ask(address, path string) (int, string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
	require.NoError(s, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(s, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(s, err)
	return res.StatusCode, string(body)
}

// A service from Kafka to Kafka has no database: it handles and publishes typed events, and tells how it is. A poison message is a
// dead letter of the broker with its reason, and nothing that its attempts have published is ever seen.
func TestWithoutPostgres(t *testing.T) {
	s := newTableless(t)
	prices, quotes := framework.Topic[price](s.topic("prices")), framework.Topic[quoted](s.topic("quotes"))
	got := make(chan int, 100)
	var attempts atomic.Int64
	require.NoError(t, framework.Handle(s.Service, "quote", prices, func(ctx context.Context, p price) error {
		if err := quotes.Publish(ctx, "a", quoted{p.Cents / 100}); err != nil {
			return err
		}
		switch p.Cents {
		case 200:
			attempts.Add(1)
			return errors.New("no price today")
		case 300:
			panic("a handler's")
		case 400:
			return claim.Permanent(errors.New("never"))
		}
		return nil
	}))
	require.NoError(t, framework.Handle(s.Service, "collect", quotes, func(_ context.Context, q quoted) error {
		got <- q.Euros
		return nil
	}))
	s.start()

	k := s.outside()
	send(t, k, prices.Name(), `{"Cents":100}`, `{"Cents":200}`, `{"Cents":300}`, `{"Cents":400}`, `no JSON`, `{"Cents":500}`)
	first := next(t, got)
	assert.Equal(t, 1, first)
	second := first
	for second == first { // what a handler does in memory, it may do again
		second = next(t, got)
	}
	assert.Equal(t, 5, second, "nothing of an attempt that failed")
	assert.GreaterOrEqual(t, attempts.Load(), int64(3), "claim.max_attempts")

	dead, err := k.Subscriber(transport.SubscriberConfig{Consumer: transport.DeadLetterConsumer, Ordered: true, Concurrency: 1})
	require.NoError(t, err)
	letters, err := dead.Subscribe(t.Context(), transport.DeadLetterTopic(prices.Name(), s.name()+".quote"))
	require.NoError(t, err)
	reasons := map[string]string{}
	for len(reasons) < 4 { // this reader may get one twice
		msg := next(t, letters)
		reasons[string(msg.Payload)] = msg.Metadata[transport.DeadErrorMetadata]
		assert.Equal(t, transport.DeadRejected, msg.Metadata[transport.DeadReasonMetadata])
		msg.Ack()
	}
	for payload, want := range map[string]string{
		`{"Cents":200}`: "its handler has failed 3 times, the last time with: no price today",
		`{"Cents":300}`: "its handler has failed 3 times, the last time with: panic occurred: \"a handler's\"",
		`{"Cents":400}`: "never",
		`no JSON`:       "decode the payload as framework_test.price",
	} {
		assert.Contains(t, reasons[payload], want, payload)
	}

	code, body := s.ask(s.Address(), "/readyz")
	assert.Equal(t, http.StatusOK, code)
	assert.JSONEq(t, `{"ready":true,"checks":[{"name":"broker","ok":true},{"name":"handlers","ok":true}]}`, body)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200, "/catalog": 200, "/console/": 501} {
		code, body := s.ask(s.AdminAddress(), path)
		assert.Equal(t, want, code, path)
		if path == "/console/" {
			assert.Equal(t, "the console shows what is in the database: the service has no PostgreSQL, which this needs: name one in Config.Postgres.DSN (postgres.dsn), without Config.Postgres.Disabled\n", body)
		}
		if path == "/metrics" {
			assert.Contains(t, body, "millrace_kafka_transactions")
			assert.NotContains(t, body, "db_client_connection")
		}
	}
}

// What needs a database is refused where it is called, with the field and the remedy, and nothing panics.
func TestWithoutPostgresRefusesCalls(t *testing.T) {
	s := newTableless(t)
	topic := framework.Topic[price](s.topic("prices"))
	const none = "the service has no PostgreSQL, which this needs: name one in Config.Postgres.DSN (postgres.dsn), without Config.Postgres.Disabled"
	inTx := func(context.Context, pgx.Tx) error { return errors.New("there is a transaction") }
	once := func(context.Context, string) error { return nil }
	foreign, err := devtest.Pool(t).Begin(t.Context())
	require.NoError(t, err)
	defer func() { assert.NoError(t, foreign.Rollback(context.WithoutCancel(t.Context()))) }()
	calls := map[string]struct {
		call func(ctx context.Context) error
		want string
	}{
		"Tx":       {func(ctx context.Context) error { return s.Tx(ctx, inTx) }, "begin transaction: " + none},
		"pgtx.Run": {func(ctx context.Context) error { return pgtx.Run(ctx, s.Pool(), inTx) }, "begin transaction: " + none},
		"Pool": {func(ctx context.Context) error {
			_, err := s.Pool().Exec(ctx, `select 1`)
			return err
		}, none},
		"effect": {func(ctx context.Context) error { return effect.Once(effect.With(ctx, s.Effects()), "charge", once) }, none},
		"outbox": {func(ctx context.Context) error { // with the caller's own transaction, of which no relay would know
			msg, err := topic.Message(pgtx.With(transport.WithUnit(ctx, nil), foreign), "a", price{})
			if err != nil {
				return err
			}
			return s.Outbox().Publish("prices", msg)
		}, none},
	}
	outside := map[string]struct {
		call func(ctx context.Context) error
		want string
	}{
		"Keys": {func(context.Context) error {
			_, err := s.Keys(idempotencykey.Shared)
			return err
		}, "idempotency keys: " + none},
		"Schedule": {func(context.Context) error {
			return framework.Schedule(s.Service, "nightly", "@daily", topic, func(time.Time) (string, price) { return "", price{} })
		}, `add schedule "nightly": ` + none},
	}
	verify := func(where string, ctx context.Context, name string, call func(context.Context) error, want string) {
		err := call(ctx)
		assert.ErrorIs(t, err, framework.ErrNoPostgres, "%s %s: %v", where, name, err)
		assert.ErrorContains(t, err, want, "%s %s", where, name)
	}
	for name, c := range outside {
		verify("before Run", t.Context(), name, c.call, c.want)
		assert.EqualError(t, c.call(t.Context()), c.want)
	}
	requested, handled := make(chan struct{}), make(chan struct{})
	s.HTTP().HandleFunc("GET /calls", func(_ http.ResponseWriter, r *http.Request) {
		defer close(requested)
		for name, c := range calls {
			verify("in a request", r.Context(), name, c.call, c.want)
		}
		assert.EqualError(t, topic.Publish(r.Context(), "a", price{}),
			"publish to "+topic.Name()+": without the context of a message that is being handled: "+none)
	})
	s.HTTP().Handle("POST /events", s.AcceptCloudEvents(topic.Name()))
	require.NoError(t, framework.Handle(s.Service, "call", topic, func(ctx context.Context, _ price) error {
		defer close(handled)
		for name, c := range calls {
			verify("in a handler", ctx, name, c.call, c.want)
		}
		return nil
	}))
	s.start()
	s.ask(s.Address(), "/calls")
	assert.Equal(t, http.StatusNotImplemented, post(t, "http://"+s.Address()+"/events"), "503 would say: send it again")
	send(t, s.outside(), topic.Name(), `{"Cents":1}`)
	for _, done := range []chan struct{}{requested, handled} {
		select {
		case <-done:
		case <-time.After(wait):
			require.FailNow(t, "the calls were not made")
		}
	}
}

// What is configured and needs a database is refused when the configuration is read.
func TestWithoutPostgresRefusesSettings(t *testing.T) {
	bare(t)
	const start = "service: s\npostgres: {disabled: true}\nbroker: kafka\nkafka: {brokers: [127.0.0.1:1], delivery: transactional, client_id: s}\n"
	const set = "set, which needs a database, beside postgres.disabled: want a database, or "
	for section, want := range map[string]string{
		"outbox: {max_backlog: 5}":                                         "outbox is " + set + "nothing here",
		"outbox: {delivery: transactional}":                                "outbox is " + set + "nothing here",
		"claim: {group: 10}":                                               "claim is " + set + "MaxAttempts alone",
		"dead_letters: {keep: 48h}":                                        "dead_letters is " + set + "the retention of Kafka's dead-letter topic",
		"effects: {max_conns: 2}":                                          "effects is " + set + "nothing here",
		"idempotency_keys: {retention: 48h}":                               "idempotency_keys is " + set + "nothing here",
		"schedules: {nightly: {expression: '@daily'}}":                     "schedules.nightly is " + set + "nothing here",
		"handlers: {a: {timeout: 5s}}":                                     "handlers.a.timeout is " + set + "nothing here",
		"handlers: {a: {max_per_key: 1}}":                                  "handlers.a.max_per_key is " + set + "nothing here",
		"handlers: {a: {breaker: {failures: 5}}}":                          "handlers.a.breaker is " + set + "nothing here",
		"handlers: {a: {retry: [{max_attempts: 2}]}}":                      "handlers.a.retry is " + set + "claim.max_attempts",
		"handlers: {a: {dead_letters: {keep: 48h}}}":                       "handlers.a.dead_letters is " + set + "the retention of Kafka's dead-letter topic",
		"health: {require: [broker, relays]}":                              "health.require[1] is " + set + "no check of the outbox",
		"fleet: {databases: [{name: a, dsn: 'postgres://127.0.0.1:1/a'}]}": "fleet is " + set + "nothing here",
		"{}":                       "",
		"claim: {max_attempts: 4}": "",
		"handlers: {a: {ordered: true, concurrency: 200}}": "",
		"health: {require: [broker]}":                      "",
	} {
		path := file(t, start+strings.TrimPrefix(section, "{}")+"\n")
		_, err := framework.Load(path, kafka.Driver)
		if want == "" {
			require.NoError(t, err, section)
			continue
		}
		assert.EqualError(t, err, path+":5: "+want, section)
	}
}

// A service has no database only if its configuration says so, and where that doubles nothing.
func TestWithoutPostgresIsSaid(t *testing.T) {
	bare(t)
	const transactional = "broker: kafka\nkafka: {brokers: [127.0.0.1:1], delivery: transactional}\n"
	const once = "postgres.disabled is true with a broker that delivers at least once: want kafka with delivery: transactional, " +
		"because without a claim an event that is delivered again takes effect again"
	for text, want := range map[string]string{
		transactional + "postgres: {disabled: true}":                                  "",
		transactional + "postgres: {disabled: true, dsn: 'postgres://127.0.0.1:1/a'}": "", // as "millrace dev" sets it
		"broker: kafka\nkafka: {brokers: [127.0.0.1:1]}\npostgres: {disabled: true}":  once,
		"broker: pubsub\npubsub: {project_id: p}\npostgres: {disabled: true}":         once,
		"broker: memory\npostgres: {disabled: true}":                                  once,
	} {
		cfg, err := framework.Load(file(t, "service: s\n"+text+"\n"), drivers...)
		if want != "" {
			assert.ErrorContains(t, err, want, text)
			continue
		}
		require.NoError(t, err)
		t.Setenv("DATABASE_URL", "postgres://127.0.0.1:1/a") // of other programs
		assert.NoError(t, cfg.Validate())
		t.Setenv("DATABASE_URL", "")
	}

	t.Setenv("PGPORT", "1")
	t.Setenv("PGSSLMODE", "disable")
	cfg, err := framework.Load(file(t, "service: s\n"+transactional), kafka.Driver)
	require.NoError(t, err)
	cfg.HTTP.Address = "127.0.0.1:0"
	_, err = framework.New(t.Context(), cfg)
	require.ErrorContains(t, err, "connect to PostgreSQL at ")
	require.ErrorContains(t, err, "or change Config.Postgres.DSN (postgres.dsn)")
	require.ErrorContains(t, err, "No DSN is set.")
	require.ErrorContains(t, err, "A service on Kafka with delivery: transactional can do without: set postgres.disabled.")
}

// What "millrace config print" prints means the same when it is read.
func TestWithoutPostgresIsPrinted(t *testing.T) {
	bare(t)
	cfg, err := framework.Load(file(t, "service: s\nbroker: kafka\nkafka: {brokers: [127.0.0.1:1], delivery: transactional}\nclaim: {max_attempts: 4}\npostgres: {disabled: true}\n"+
		"handlers: {a: {ordered: true}}\nadmin: {address: '127.0.0.1:0'}\n"), kafka.Driver)
	require.NoError(t, err)
	printed, err := cfg.YAML()
	require.NoError(t, err)
	for _, section := range []string{"migration:", "outbox:", "effects:", "schedules:"} {
		assert.NotContains(t, string(printed), "\n"+section)
	}
	assert.Contains(t, string(printed), "claim:\n    max_attempts: 4\n")
	assert.Contains(t, string(printed), "postgres:\n    disabled: true\n")
	path := filepath.Join(t.TempDir(), "printed.yaml")
	require.NoError(t, os.WriteFile(path, printed, 0o600))
	again, err := framework.Load(path, kafka.Driver)
	require.NoError(t, err)
	reprinted, err := again.YAML()
	require.NoError(t, err)
	assert.Equal(t, string(printed), string(reprinted))
}
