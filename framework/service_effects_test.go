package framework_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework"
	"github.com/millrace-go/millrace/internal/tables"
	"github.com/millrace-go/millrace/middleware/effect"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/pgtx"
)

// dropDay drops a day of the table that is yet to come: housekeeping makes it anew.
func (w *world) dropDay(table string) (there func() bool) {
	day := w.schema + "." + table + "_" + time.Now().UTC().AddDate(0, 0, 3).Format("20060102")
	_, err := w.pool.Exec(w.t.Context(), `drop table `+day)
	require.NoError(w.t, err)
	return func() bool { return w.get(`select count(to_regclass('`+day+`'))`) == 1 }
}

// migrated makes the tables.
func (w *world) migrated() {
	require.NoError(w.t, w.service(w.config()).Close())
}

// metrics are the names of a part's metrics at /metrics, with their values.
func metrics(t *testing.T, svc *framework.Service, prefix string) map[string]string {
	code, body := get(t, svc, "/metrics", nil)
	require.Equal(t, http.StatusOK, code)
	found := map[string]string{}
	for line := range strings.Lines(body) {
		if series, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.HasPrefix(series, prefix) {
			name, labels, _ := strings.Cut(series, "{")
			outcome := regexp.MustCompile(`millrace_outcome="(\w+)"`).FindStringSubmatch(labels)
			if len(outcome) == 2 {
				name += " " + outcome[1]
			}
			found[name] = value
		}
	}
	return found
}

// A request with a key publishes an event, whose handler has effects at a provider: with nothing made by hand each is had
// once, a doubt is seen at /metrics, and the tables are kept.
func TestFrameworkEffects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	w.migrated()
	made := w.dropDay("effect")
	cfg := w.config()
	cfg.Claim.MaxAttempts, cfg.Effects.RetryAfter = 10, time.Minute
	svc := w.service(cfg)
	var charged atomic.Int64
	charge := func(_ context.Context, key string) (string, error) {
		charged.Add(1)
		return "receipt of " + key, nil
	}
	receipts := make(chan string, 10)
	failed := false
	require.NoError(t, handle(svc, w.name("charge"), w.topic("order.placed"), func(ctx context.Context, order string) error {
		receipt, err := effect.Value(ctx, "charge:"+order, charge)
		if err != nil {
			return err
		}
		if !failed {
			failed = true
			return errors.New("behind the call, so that the event comes again")
		}
		receipts <- receipt
		return nil
	}))
	require.NoError(t, handle(svc, w.name("text"), w.topic("order.placed"), func(ctx context.Context, order string) error {
		return effect.Once(ctx, "text:"+order, func(context.Context, string) error { return errors.New("timeout") })
	}))
	keys, err := svc.Keys(idempotencykey.Shared)
	require.NoError(t, err)
	svc.HTTP().Handle("POST /orders", keys.Middleware(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if err := publish(r.Context(), w.topic("order.placed"), "", "42"); err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
		}
	})))
	svc.HTTP().HandleFunc("POST /refunds", func(rw http.ResponseWriter, r *http.Request) {
		if _, err := effect.Value(r.Context(), "refund:42", charge); err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
		}
	})
	stop := w.start(svc)

	for range 2 {
		code, _ := postKey(t, svc, "/orders", "A")
		require.Equal(t, http.StatusOK, code)
	}
	assert.True(t, strings.HasPrefix(next(t, receipts), "receipt of "))
	assert.EqualValues(t, 1, charged.Load())
	require.Equal(t, http.StatusOK, post(t, "http://"+svc.Address()+"/refunds"), "a request's context has the ledger too")
	require.NoError(t, svc.Tx(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		_, err := effect.Value(ctx, "refund:42", charge)
		return err
	}), "and so has that of Tx")
	assert.EqualValues(t, 2, charged.Load())

	var seen map[string]string
	w.eventually("the doubt", func() bool {
		seen = metrics(t, svc, "millrace_effect_")
		return seen["millrace_effect_in_doubt"] == "1"
	})
	assert.Equal(t, "2", seen["millrace_effect_calls_total done"])
	assert.Equal(t, "1", seen["millrace_effect_calls_total doubt"])
	assert.Equal(t, "2", seen["millrace_effect_replayed_total"])
	alerts, err := os.ReadFile("../docs/alerts.yml")
	require.NoError(t, err)
	alerting := regexp.MustCompile(`millrace_effect_\w+`).FindAllString(string(alerts), -1)
	require.NotEmpty(t, alerting)
	for _, name := range alerting {
		assert.Contains(t, seen, name, "an alert asks for it")
	}
	w.eventually("the days ahead", made)
	stop()
	_, err = effect.Value(effect.With(t.Context(), svc.Effects()), "charge:43", charge)
	assert.Error(t, err, "it is closed with the service")
}

// postKey sends a request with an Idempotency-Key.
func postKey(t *testing.T, svc *framework.Service, path, key string) (code int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+svc.Address()+path, http.NoBody)
	require.NoError(t, err)
	req.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	all, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	return res.StatusCode, string(all)
}

// Keys of two scopes, which tell the route's callers apart by the account, and share nothing.
func TestFrameworkKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	w.migrated()
	made := w.dropDay("idempotency_key")
	cfg := w.config()
	cfg.IdempotencyKeys.Methods = []string{http.MethodPost}
	svc := w.service(cfg)
	_, err := svc.Keys(nil)
	require.ErrorContains(t, err, "Scope is nil")
	count := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		tx, _ := pgtx.From(r.Context())
		_, err := tx.Exec(r.Context(), `update `+w.schema+`.labours set thanks = thanks + 1 where id = 1`)
		if assert.NoError(t, err) {
			_, _ = io.WriteString(rw, r.URL.Path)
		}
	})
	for _, account := range []string{"one", "two"} {
		keys, err := svc.Keys(func(*http.Request) (string, error) { return account, nil })
		require.NoError(t, err)
		svc.HTTP().Handle("POST /"+account, keys.Middleware(count))
	}
	stop := w.start(svc)
	for _, account := range []string{"one", "two"} {
		for range 3 {
			code, body := postKey(t, svc, "/"+account, "A")
			assert.Equal(t, http.StatusOK, code)
			assert.Equal(t, "/"+account, body)
		}
	}
	assert.Equal(t, 2, w.get(`select thanks from {s}.labours where id = 1`), "once for each account")
	seen := metrics(t, svc, "millrace_idempotencykey_requests_total")
	assert.Equal(t, map[string]string{
		"millrace_idempotencykey_requests_total executed": "2", "millrace_idempotencykey_requests_total replayed": "4",
	}, seen)
	w.eventually("the days ahead", made)
	_, err = svc.Keys(idempotencykey.Shared)
	require.ErrorContains(t, err, "call Keys before Run")
	stop()
}

// postgres.migrate makes the tables of all parts. A service without the tables of one does not start, and is not ready when
// they go.
func TestMigrateAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "memory")
	cfg := w.config()
	cfg.Outbox.Relay = framework.Apart // a relay of its own would end the service
	svc := w.service(cfg)
	there, err := tables.Installed(t.Context(), w.pool, w.schema)
	require.NoError(t, err)
	assert.Equal(t, map[string]bool{"outbox": true, "claim": true, "effect": true, "idempotencykey": true, "schedule": true}, there)

	stop := w.start(svc)
	cfg.Postgres.Migrate = false
	parts, err := tables.Migrators(w.pool, w.schema)
	require.NoError(t, err)
	for _, part := range parts {
		w.eventually("ready", func() bool { code, _ := get(t, svc, "/readyz", nil); return code == http.StatusOK })
		require.NoError(t, part.Down(t.Context(), 0, true))
		w.eventually("not ready", func() bool {
			code, body := get(t, svc, "/readyz", nil)
			return code == http.StatusServiceUnavailable && strings.Contains(body, "the tables are missing, or of another version")
		})
		_, err := framework.New(t.Context(), cfg)
		require.ErrorContains(t, err, "version 0 of "+part.Component())
		require.ErrorContains(t, err, "postgres.migrate")
		require.NoError(t, part.Up(t.Context()))
	}
	stop()
}
