package idempotencykey_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/pgtx"
)

// problemOf asserts that the answer is a problem, and returns its type's name and its body.
func problemOf(t *testing.T, w *httptest.ResponseRecorder, kind string) {
	t.Helper()
	assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	assert.Contains(t, w.Body.String(), `"type":"`+kind+`"`)
	assert.Regexp(t, `"detail":".+"`, w.Body.String())
}

func TestRepeatedRequestGetsTheStoredAnswer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(f.orders)
	first, again := post(h, "k1", "body"), post(h, "k1", "body")
	assert.False(t, replayed(first))
	assert.True(t, replayed(again))
	again.Header().Del("Idempotent-Replayed")
	assert.Equal(t, first.Header(), again.Header())
	for _, w := range []*httptest.ResponseRecorder{first, again} {
		assert.Equal(t, http.StatusCreated, w.Code)
		assert.Equal(t, "run 1", w.Body.String())
		assert.Equal(t, "/orders/7", w.Header().Get("Location"))
		assert.Equal(t, "5", w.Header().Get("Content-Length"))
	}
	f.holds(1, 1)

	assert.Equal(t, "run 1", post(h, `"k1"`, "body").Body.String(), "quoted and bare keys are the same")
	assert.Equal(t, "run 2", post(h, "k2", "body").Body.String())
	f.holds(2, 2)
}

// What the handler's answer means for its writes, its events and the stored answer.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                     string
		status                   int
		orders, answers, runs    int // after the request and one repetition
		headers                  map[string]string
		body, wantBody, wantType string
	}{
		{name: "200", status: 200, orders: 1, answers: 1, runs: 1, body: "done", wantBody: "done"},
		{name: "204", status: 204, orders: 1, answers: 1, runs: 1, body: "not allowed"},
		{name: "303", status: 303, orders: 1, answers: 1, runs: 1, headers: map[string]string{"Location": "/orders/7"}},
		{name: "304", status: 304, orders: 1, answers: 1, runs: 1, headers: map[string]string{"Content-Length": "7"}},
		{name: "nothing written", orders: 1, answers: 1, runs: 1},
		{name: "an empty value", orders: 1, answers: 1, runs: 1, headers: map[string]string{"X-Empty": ""}},
		{name: "400", status: 400, answers: 1, runs: 1, body: "no", wantBody: "no"},
		{name: "409", status: 409, answers: 1, runs: 1, body: "no", wantBody: "no"},
		{name: "408", status: 408, runs: 2, body: "late", wantBody: "late"},
		{name: "425", status: 425, runs: 2, body: "early", wantBody: "early"},
		{name: "429", status: 429, runs: 2, body: "later", wantBody: "later", headers: map[string]string{"Retry-After": "9"}},
		{name: "500", status: 500, runs: 2, body: "oops", wantBody: "oops"},
		{name: "503", status: 503, runs: 2, body: "oops", wantBody: "oops"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			committed := 0
			h := f.around(func(w http.ResponseWriter, r *http.Request) {
				f.place(r.Context(), "order")
				pgtx.AfterCommit(r.Context(), func() { committed++ })
				for k, v := range c.headers {
					w.Header().Set(k, v)
				}
				if c.status != 0 {
					w.WriteHeader(c.status)
				}
				if c.body != "" {
					_, err := io.WriteString(w, c.body)
					assert.Equal(t, c.wantBody == "", errors.Is(err, http.ErrBodyNotAllowed))
				}
			})
			for i := range 2 {
				w := post(h, "k", "body")
				assert.Equal(t, max(c.status, 0), map[bool]int{true: w.Code}[c.status != 0])
				assert.Equal(t, c.wantBody, w.Body.String())
				for k, v := range c.headers {
					if k != "Content-Length" {
						assert.Equal(t, v, w.Header().Get(k), k)
						assert.Contains(t, w.Header(), k)
					}
				}
				assert.Equal(t, i == 1 && c.runs == 1, replayed(w))
			}
			f.holds(c.orders, c.answers)
			assert.Equal(t, int64(c.runs), f.runs.Load())
			assert.Equal(t, c.orders, committed, "nothing happens after a commit that was none")
		})
	}
}

func TestKeyRules(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(f.orders)
	w := post(h, "", "body")
	assert.Equal(t, http.StatusBadRequest, w.Code)
	problemOf(t, w, idempotencykey.KeyMissing)

	two := request("a", "body")
	two.Header.Add("Idempotency-Key", "b")
	empty := request("a", "body")
	empty.Header.Set("Idempotency-Key", "")
	for _, r := range []*http.Request{two, empty, request("a, b", "body"), request(`"a`, "body"), request(strings.Repeat("x", 256), "body")} {
		w := do(h, r)
		assert.Equal(t, http.StatusBadRequest, w.Code)
		problemOf(t, w, idempotencykey.KeyMalformed)
	}
	f.holds(0, 0)
	assert.Equal(t, http.StatusCreated, post(h, strings.Repeat("x", 255), "body").Code)
}

func TestKeyOfAnotherRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(f.orders)
	require.Equal(t, http.StatusCreated, post(h, "k", "body").Code)
	change := func(f func(r *http.Request)) *http.Request {
		r := request("k", "body")
		f(r)
		return r
	}
	for what, r := range map[string]*http.Request{
		"body":         request("k", "another"),
		"no body":      request("k", ""),
		"method":       change(func(r *http.Request) { r.Method = http.MethodPatch }),
		"path":         change(func(r *http.Request) { r.URL.Path = "/orders/" }),
		"query":        change(func(r *http.Request) { r.URL.RawQuery = "a=b" }),
		"content type": change(func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }),
	} {
		w := do(h, r)
		assert.Equal(t, http.StatusUnprocessableEntity, w.Code, what)
		problemOf(t, w, idempotencykey.KeyReused)
	}
	assert.True(t, replayed(post(h, "k", "body")))
	f.holds(1, 1)
}

// The handlers of two operations see one path behind http.StripPrefix.
func TestKeyOfAnotherMount(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(f.orders)
	at := func(mount string) int {
		r := httptest.NewRequest(http.MethodPost, mount+"/pay", strings.NewReader("body"))
		r.Header.Set("Idempotency-Key", "k")
		return do(http.StripPrefix(mount, h), r).Code
	}
	assert.Equal(t, []int{http.StatusCreated, http.StatusUnprocessableEntity, http.StatusCreated}, []int{at("/a"), at("/b"), at("/a")})
	f.holds(1, 1)
}

// Another payload must not get the first one's answer because what stands outside has read both.
func TestBodyWasReadOutside(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	inner := f.around(f.orders)
	for name, outside := range map[string]func(r *http.Request){
		"form":   func(r *http.Request) { _ = r.FormValue("token") },
		"reader": func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		"chunked form": func(r *http.Request) {
			r.ContentLength = -1
			_ = r.FormValue("token")
		},
	} {
		r := request("k", "amount=1")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		outside(r)
		w := do(inner, r)
		assert.Equal(t, http.StatusInternalServerError, w.Code, name)
		problemOf(t, w, idempotencykey.Failed)
	}
	r := request("k", `{"amount":1}`)
	_ = r.FormValue("token") // reads no body of this type
	assert.Equal(t, http.StatusCreated, do(inner, r).Code)
	f.holds(1, 1)
}

func TestScopesAreSeparate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	account := func(r *http.Request) (string, error) {
		switch a := r.Header.Get("Account"); a {
		case "unknown":
			return "", errors.New("no such account")
		default:
			return a, nil
		}
	}
	h := f.keys(idempotencykey.Config{Scope: account}).Middleware(http.HandlerFunc(f.orders))
	as := func(account string) *httptest.ResponseRecorder {
		r := request("k", "body")
		r.Header.Set("Account", account)
		return do(h, r)
	}
	assert.Equal(t, "run 1", as("ann").Body.String())
	assert.Equal(t, "run 2", as("bob").Body.String())
	assert.Equal(t, "run 1", as("ann").Body.String())
	for _, nobody := range []string{"", "unknown"} {
		w := as(nobody)
		assert.Equal(t, http.StatusInternalServerError, w.Code)
		problemOf(t, w, idempotencykey.Failed)
	}
	var found int
	require.NoError(t, f.pool.QueryRow(t.Context(), `select count(*) from `+f.schema+`.idempotency_key k where k::text ~ 'ann|bob'`).Scan(&found))
	assert.Zero(t, found, "a scope may be a secret, so it is not stored")
	f.holds(2, 2)
}

func TestOtherRequestsPassThrough(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, ok := pgtx.From(r.Context())
		assert.False(t, ok)
		_, ok = w.(*httptest.ResponseRecorder)
		assert.True(t, ok, "the writer is the server's own")
	})
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete} {
		r := request("k", "")
		r.Method = method
		assert.Equal(t, http.StatusOK, do(f.around(bare), r).Code)
	}
	optional := f.keys(idempotencykey.Config{Optional: true})
	assert.Equal(t, http.StatusOK, post(optional.Middleware(bare), "", "body").Code)
	f.holds(0, 0)
	assert.False(t, replayed(post(optional.Middleware(http.HandlerFunc(f.orders)), "k", "body")))
	assert.True(t, replayed(post(optional.Middleware(http.HandlerFunc(f.orders)), "k", "body")))

	put := f.keys(idempotencykey.Config{Methods: []string{http.MethodPut}}).Middleware(http.HandlerFunc(f.orders))
	r := request("put", "body")
	r.Method = http.MethodPut
	assert.Equal(t, http.StatusCreated, do(put, r).Code)
	f.holds(2, 2)
}

// A function that uses pgtx.Run joins the transaction of the request, and may fail alone.
func TestNestedRunJoins(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	oops := errors.New("oops")
	h := f.around(func(w http.ResponseWriter, r *http.Request) {
		for _, outcome := range []error{nil, oops} {
			assert.ErrorIs(t, pgtx.Run(r.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
				f.place(ctx, "order")
				return outcome
			}), outcome)
		}
		assert.Zero(t, f.count("orders"), "not yet committed")
	})
	assert.Equal(t, http.StatusOK, post(h, "k", "body").Code)
	f.holds(1, 1)
}

func TestPanicRollsBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, reason := range []any{http.ErrAbortHandler, "oops"} {
		h := f.around(func(w http.ResponseWriter, r *http.Request) {
			f.place(r.Context(), "order")
			w.WriteHeader(http.StatusOK)
			panic(reason)
		})
		assert.PanicsWithValue(t, reason, func() { post(h, "k", "body") })
	}
	assert.Panics(t, func() {
		post(f.around(func(w http.ResponseWriter, r *http.Request) {
			f.place(r.Context(), "order")
			w.WriteHeader(0)
		}), "k", "body")
	}, "as net/http does")
	f.holds(0, 0)
	assert.Equal(t, http.StatusCreated, post(f.around(f.orders), "k", "body").Code)
}

// A statement failed, and the handler did not care: nothing is committed, so nothing may be answered as if it were.
func TestSwallowedErrorStoresNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	swallow := func(status int) http.Handler {
		return f.around(func(w http.ResponseWriter, r *http.Request) {
			f.place(r.Context(), "order")
			tx, _ := pgtx.From(r.Context())
			_, err := tx.Exec(r.Context(), `select 1/0`)
			assert.Error(t, err)
			w.WriteHeader(status)
		})
	}
	w := post(swallow(http.StatusOK), "k", "body")
	assert.Equal(t, http.StatusInternalServerError, w.Code)
	problemOf(t, w, idempotencykey.Failed)
	f.holds(0, 0)
	assert.Equal(t, http.StatusConflict, post(swallow(http.StatusConflict), "k", "body").Code)
	f.holds(0, 1)
	assert.True(t, replayed(post(swallow(http.StatusOK), "k", "body")), "a rejection is stored although its transaction failed")
}

// What a role or a pool sets by default must not weaken a stored answer.
func TestHostileDefaults(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cfg := f.pool.Config()
	cfg.MaxConns = 1
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	h := f.keysOn(pool, idempotencykey.Config{Timeout: time.Minute}).Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx, _ := pgtx.From(r.Context())
		var isolation, durable string
		var idle int
		assert.NoError(t, tx.QueryRow(r.Context(), `select current_setting('transaction_isolation'), current_setting('synchronous_commit'),
			(select setting::int from pg_settings where name = 'idle_in_transaction_session_timeout')`).Scan(&isolation, &durable, &idle))
		assert.Equal(t, "read committed", isolation)
		assert.Equal(t, "on", durable)
		assert.Equal(t, 65_000, idle, "milliseconds: the handler's time and some slack")
		w.WriteHeader(http.StatusNotFound) // a rejection is stored in a transaction of its own
	}))
	assert.Equal(t, http.StatusNotFound, post(h, "k", "body").Code)
	var after string
	require.NoError(t, pool.QueryRow(t.Context(), `show synchronous_commit`).Scan(&after))
	assert.Equal(t, "off", after, "the setting was the transaction's alone")
	f.holds(0, 1)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := post(f.around(f.around(f.orders).ServeHTTP), "k", "body")
	assert.Equal(t, http.StatusInternalServerError, w.Code, "the middleware is there twice")

	bare, err := idempotencykey.New(f.pool, idempotencykey.Config{Service: "shop", Scope: idempotencykey.Shared, Schema: "nowhere_at_all"})
	require.NoError(t, err)
	w = post(bare.Middleware(http.HandlerFunc(f.orders)), "k", "body")
	assert.Equal(t, http.StatusInternalServerError, w.Code)

	_, err = idempotencykey.New(nil, idempotencykey.Config{
		Service: "shop",
		Methods: []string{"GET"}, Retention: time.Minute, Timeout: -1, MaxBody: -1, MaxResponse: 1 << 40, Schema: "Big",
	})
	for _, want := range []string{
		"pool is nil", "Config.Scope is nil", `Config.Methods has "GET"`, "Config.Retention is 1m", "Config.Timeout is -1ns",
		"Config.MaxBody is -1", "Config.MaxResponse is 1099511627776", `Config.Schema is "Big"`,
	} {
		require.ErrorContains(t, err, want)
	}
	f.holds(0, 0)
}

// A service may write errors its own way.
func TestOwnProblems(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	keys := f.keys(idempotencykey.Config{Problem: func(w http.ResponseWriter, _ *http.Request, p idempotencykey.Problem) {
		http.Error(w, p.Title, http.StatusTeapot)
	}})
	w := post(keys.Middleware(http.HandlerFunc(f.orders)), "", "body")
	assert.Equal(t, http.StatusTeapot, w.Code)
	assert.Equal(t, "Idempotency-Key is missing\n", w.Body.String())
}
