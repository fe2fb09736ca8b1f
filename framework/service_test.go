package framework_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/framework/devstack"
	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/deadletter"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/kafka"
	"github.com/millrace-go/millrace/transport/memory"
	"github.com/millrace-go/millrace/transport/pubsub"
)

const wait = time.Minute

type labourCompleted struct {
	LabourID int64  `json:"labour_id"`
	Mother   string `json:"mother"`
}

// world is what a test's services have in common.
type world struct {
	t              *testing.T
	pool           *pgxpool.Pool // of the test's own
	schema, prefix string
	file, project  string
	duplicates     atomic.Int64
	drivers        []transport.Driver
}

// newWorld has a configuration in which the broker is a line.
func newWorld(t *testing.T, broker string) *world {
	w := &world{t: t, pool: devtest.Pool(t), schema: devtest.Schema(t), prefix: devtest.Topic(t), project: devtest.Project(t)}
	stack := devtest.Start(t, devstack.Postgres)
	settings := pubsub.Config{}
	brokers := "127.0.0.1:1"
	switch broker {
	case "pubsub":
		settings.ClientOptions = emulated(devtest.Start(t, devstack.PubSub).PubSubHost())
	case "kafka":
		brokers = strings.Join(devtest.Start(t, devstack.Kafka).KafkaBrokers(), ", ")
	}
	w.drivers = []transport.Driver{pubsub.NewDriver(settings), kafka.Driver, memory.Driver}
	w.file = file(t, fmt.Sprintf(`
service: labour
broker: %s
http: {address: "127.0.0.1:0", linger: 0s}
postgres: {dsn: %q, schema: %s, migrate: true}
claim: {max_attempts: 2}
pubsub: {project_id: %s, subscription: {ack_deadline: 10s}}
kafka: {brokers: [%s]}
`, broker, stack.PostgresDSN(), w.schema, w.project, brokers))
	_, err := w.pool.Exec(t.Context(), strings.ReplaceAll(`
		create table {s}.labours (id bigint primary key, mother text not null, completed_at timestamptz, thanks int not null default 0);
		create table {s}.notifications (labour_id bigint not null, event_id text not null);
		insert into {s}.labours (id, mother) select n, 'Mother ' || n from generate_series(1, 3) n`, "{s}", w.schema))
	require.NoError(t, err)
	return w
}

// Enabled and the others make the world a slog.Handler that counts the duplicates.
func (w *world) Enabled(context.Context, slog.Level) bool { return true }
func (w *world) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w *world) WithGroup(string) slog.Handler            { return w }
func (w *world) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "duplicate absorbed" {
		w.duplicates.Add(1)
	}
	return nil
}

// publish publishes to a topic that is named when the test runs.
func publish[T any](ctx context.Context, topic, key string, event T) error {
	return framework.Topic[T](topic).Publish(ctx, key, event)
}

// handle handles the events of such a topic.
func handle[T any](svc *framework.Service, name, topic string, fn func(context.Context, T) error) error {
	return framework.Handle(svc, name, framework.Topic[T](topic), fn)
}

func (w *world) topic(name string) string { return w.prefix + "." + name }

// name is a handler's, which is a group in Kafka, where all tests meet.
func (w *world) name(name string) string { return strings.ReplaceAll(w.prefix, ".", "-") + "-" + name }

func (w *world) config() framework.Config {
	cfg, err := framework.Load(w.file, w.drivers...)
	require.NoError(w.t, err)
	cfg.Claim.Logger = slog.New(w)
	cfg.Claim.Backoff = func(int) time.Duration { return 50 * time.Millisecond }
	return cfg
}

func (w *world) service(cfg framework.Config) *framework.Service {
	svc, err := patientNew(w.t.Context(), cfg)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { assert.NoError(w.t, svc.Close()) })
	return svc
}

// patientNew calls framework.New again if a busy machine needs more than its 5 s.
func patientNew(ctx context.Context, cfg framework.Config) (svc *framework.Service, err error) {
	for range 6 {
		if svc, err = framework.New(ctx, cfg); !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return svc, err
}

// start runs the service and returns what stops it, and waits.
func (w *world) start(svc *framework.Service) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	select {
	case <-svc.Running():
	case err := <-done:
		require.NoError(w.t, err)
		w.t.Fatal("the service ended by itself")
	}
	var stopped bool
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			select {
			case err := <-done:
				assert.NoError(w.t, err)
			case <-time.After(4 * wait):
				assert.Fail(w.t, "the service does not end")
			}
		}
	}
	w.t.Cleanup(stop)
	return stop
}

func (w *world) get(question string) (n int) {
	require.NoError(w.t, w.pool.QueryRow(context.Background(), strings.ReplaceAll(question, "{s}", w.schema)).Scan(&n))
	return n
}

func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	require.Eventually(w.t, condition, wait, 20*time.Millisecond, what)
}

// labour adds the handlers of a service that tells families, and thanks.
func (w *world) labour(svc *framework.Service, told chan<- framework.Event) {
	svc.HTTP().HandleFunc("POST /labours/{id}/complete", func(rw http.ResponseWriter, r *http.Request) {
		id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64)
		err := pgtx.Run(r.Context(), svc.Pool(), func(ctx context.Context, tx pgx.Tx) error {
			e := labourCompleted{LabourID: id}
			err := tx.QueryRow(ctx, `update `+w.schema+`.labours set completed_at = now() where id = $1 and completed_at is null returning mother`, id).Scan(&e.Mother)
			if err != nil {
				return err
			}
			return publish(ctx, w.topic("labour.completed"), r.PathValue("id"), e)
		})
		if err != nil {
			http.Error(rw, err.Error(), http.StatusConflict)
		}
	})
	require.NoError(w.t, handle(svc, w.name("notify"), w.topic("labour.completed"), func(ctx context.Context, e labourCompleted) error {
		tx, _ := pgtx.From(ctx)
		event := framework.EventFrom(ctx)
		if _, err := tx.Exec(ctx, `insert into `+w.schema+`.notifications values ($1, $2)`, e.LabourID, event.ID); err != nil {
			return err
		}
		if err := publish(ctx, w.topic("notification.sent"), event.Key, wrapperspb.Int64(e.LabourID)); err != nil {
			return err
		}
		if e.Mother == "" {
			return errors.New("whose labour?")
		}
		told <- event
		return nil
	}))
	require.NoError(w.t, handle(svc, w.name("thank"), w.topic("notification.sent"), func(ctx context.Context, id *wrapperspb.Int64Value) error {
		return pgtx.Run(ctx, svc.Pool(), func(ctx context.Context, tx pgx.Tx) error { // joins the claim's
			_, err := tx.Exec(ctx, `update `+w.schema+`.labours set thanks = thanks + 1 where id = $1`, id.Value)
			return err
		})
	}))
}

// The same service of typed topics on each broker: a request's event has one effect, and so has what its handler publishes, however often
// the event is delivered; what fails and what cannot be read is dead in the end, without an effect.
func TestTypedTopicsOnEachBroker(t *testing.T) {
	t.Parallel()
	for _, broker := range []string{"memory", "pubsub", "kafka"} {
		t.Run(broker, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, broker)
			svc := w.service(w.config())
			told := make(chan framework.Event, 10)
			w.labour(svc, told)
			stop := w.start(svc)

			url := "http://" + svc.Address() + "/labours/2/complete"
			require.Equal(t, http.StatusOK, post(t, url))
			event := next(t, told)
			assert.Equal(t, "2", event.Key)
			assert.Equal(t, w.topic("labour.completed"), event.Topic)
			assert.Equal(t, "labourCompleted", event.Metadata.Get("name"))
			w.eventually("the follow-up", func() bool { return w.get(`select thanks from {s}.labours where id = 2`) == 1 })
			assert.Equal(t, http.StatusConflict, post(t, url), "nothing is published by what is rolled back")

			payload, err := json.Marshal(labourCompleted{LabourID: 2, Mother: "Mother 2"})
			require.NoError(t, err)
			publisher, err := svc.Transport().Publisher()
			require.NoError(t, err)
			for range 3 {
				require.NoError(t, publisher.Publish(w.topic("labour.completed"), message.NewMessage(event.ID, payload)))
			}
			w.eventually("the duplicates", func() bool { return w.duplicates.Load() >= 3 })

			require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
				garbage := message.NewMessageWithContext(ctx, outbox.NewID(), []byte("no JSON"))
				return errors.Join(publish(ctx, w.topic("labour.completed"), "3", labourCompleted{LabourID: 3}),
					svc.Outbox().Publish(w.topic("labour.completed"), garbage))
			}))
			var dead []deadletter.Event
			w.eventually("two dead letters", func() bool {
				dead, err = deadletter.List(t.Context(), w.pool, w.schema, deadletter.Listing{Selection: deadletter.Selection{States: []string{"dead"}}})
				require.NoError(t, err)
				return len(dead) == 2
			})
			reasons := map[string]deadletter.Event{dead[0].Reason: dead[0], dead[1].Reason: dead[1]}
			assert.Equal(t, 2, reasons["attempts"].Attempts)
			assert.Contains(t, reasons["attempts"].Error, "whose labour?")
			assert.Equal(t, 1, reasons["permanent"].Attempts)
			assert.Contains(t, reasons["permanent"].Error, "decode the payload as framework_test.labourCompleted")

			require.Equal(t, http.StatusOK, post(t, "http://"+svc.Address()+"/labours/1/complete"))
			w.eventually("another follow-up", func() bool { return w.get(`select thanks from {s}.labours where id = 1`) == 1 })
			stop()
			assert.Equal(t, 1, w.get(`select thanks from {s}.labours where id = 2`))
			assert.Equal(t, 2, w.get(`select count(*) from {s}.notifications`), "of labours 1 and 2")
			assert.Equal(t, 2, w.get(`select sum(thanks) from {s}.labours`))
		})
	}
}

// next is what comes, unless nothing does.
func next[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(wait):
		t.Fatal("nothing has come")
	}
	return v
}

func post(t *testing.T, url string) int {
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
	require.NoError(t, err)
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	return res.StatusCode
}
