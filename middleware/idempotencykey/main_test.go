package idempotencykey_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

func TestMain(m *testing.M) {
	if os.Getenv(serviceProcess) != "" {
		if err := runService(); err != nil {
			fmt.Fprintln(os.Stderr, "service process:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	devtest.Main(m)
}

// fixture is a service with orders, an outbox and stored answers, in a schema of its own.
type fixture struct {
	t      testing.TB
	pool   *pgxpool.Pool
	schema string
	runs   atomic.Int64 // of the handlers
}

func newFixture(t testing.TB) *fixture {
	return fixtureOn(t, devtest.Pool(t), devtest.Schema(t))
}

// newLonelyFixture has a database of its own: a deferrable constraint changes what groups of claims do in the whole database.
func newLonelyFixture(t testing.TB) *fixture {
	return fixtureOn(t, devtest.PoolOn(t, devtest.Database(t)), "lonely")
}

func fixtureOn(t testing.TB, pool *pgxpool.Pool, schema string) *fixture {
	f := &fixture{t: t, pool: pool, schema: schema}
	require.NoError(t, outbox.Migrate(t.Context(), f.pool, f.schema))
	require.NoError(t, idempotencykey.Migrate(t.Context(), f.pool, f.schema))
	f.exec(`create table {schema}.orders (id text not null)`)
	return f
}

func (f *fixture) exec(sql string) {
	f.t.Helper()
	_, err := f.pool.Exec(context.Background(), sqlIn(sql, f.schema))
	require.NoError(f.t, err)
}

func sqlIn(sql, schema string) string { return strings.ReplaceAll(sql, "{schema}", schema) }

// keys are on the pool of the fixture, for one caller, unless cfg says otherwise.
func (f *fixture) keys(cfg idempotencykey.Config) *idempotencykey.Keys { return f.keysOn(f.pool, cfg) }

func (f *fixture) keysOn(pool *pgxpool.Pool, cfg idempotencykey.Config) *idempotencykey.Keys {
	cfg.Schema = f.schema
	if cfg.Service == "" {
		cfg.Service = "shop"
	}
	if cfg.Scope == nil {
		cfg.Scope = idempotencykey.Shared
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(f.t.Output(), nil))
	}
	keys, err := idempotencykey.New(pool, cfg)
	require.NoError(f.t, err)
	return keys
}

// around is h behind the middleware.
func (f *fixture) around(h http.HandlerFunc) http.Handler {
	return f.keys(idempotencykey.Config{}).Middleware(h)
}

// place writes an order and its event in the transaction of the request.
func (f *fixture) place(ctx context.Context, id string) {
	f.runs.Add(1)
	tx, ok := pgtx.From(ctx)
	require.True(f.t, ok, "the request's context carries the transaction")
	_, err := tx.Exec(ctx, `insert into `+f.schema+`.orders values ($1)`, id)
	require.NoError(f.t, err)
	events, err := outbox.NewPublisher(outbox.PublisherConfig{Schema: f.schema})
	require.NoError(f.t, err)
	require.NoError(f.t, events.Publish("orders", message.NewMessageWithContext(ctx, outbox.NewID(), []byte(id))))
}

// orders places one, and answers 201 with the number of the run, which no two have in common.
func (f *fixture) orders(w http.ResponseWriter, r *http.Request) {
	f.place(r.Context(), "order")
	w.Header().Set("Location", "/orders/7")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "run %d", f.runs.Load())
}

func (f *fixture) count(table string) (n int) {
	require.NoError(f.t, f.pool.QueryRow(context.Background(), `select count(*) from `+f.schema+`.`+table).Scan(&n))
	return n
}

// holds asserts how many orders, events and answers there are.
func (f *fixture) holds(orders, answers int) {
	f.t.Helper()
	require.Equal(f.t, []int{orders, orders, answers}, []int{f.count("orders"), f.count("outbox"), f.count("idempotency_key")},
		"orders, events, stored answers")
}

func request(key, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return r
}

func do(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func post(h http.Handler, key, body string) *httptest.ResponseRecorder {
	return do(h, request(key, body))
}

// replayed reports whether the answer is a stored one.
func replayed(w *httptest.ResponseRecorder) bool {
	return w.Header().Get("Idempotent-Replayed") == "true"
}
