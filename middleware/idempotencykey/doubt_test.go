package idempotencykey_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/pgtx"
)

// The server commits, and the connection is lost with its answer.
func TestConnectionLostBehindCommit(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			pool, cut := devtest.CutPool(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode })
			h := f.keysOn(pool, idempotencykey.Config{}).Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				f.orders(w, r)
				if f.runs.Load() == 2 {
					cut.Next()
				}
			}))
			require.Equal(t, http.StatusCreated, post(h, "first", "body").Code, "and everything is prepared")
			w := post(h, "k", "body")
			assert.Equal(t, http.StatusServiceUnavailable, w.Code)
			assert.Equal(t, "1", w.Header().Get("Retry-After"))
			problemOf(t, w, idempotencykey.OutcomeUnknown)

			again := post(h, "k", "body")
			assert.True(t, replayed(again))
			assert.Equal(t, "run 2", again.Body.String())
			f.holds(2, 2)
		})
	}
}

// The server ends the connection while COMMIT runs (a deferred trigger holds it there), which rolls back.
func TestConnectionLostInCommit(t *testing.T) {
	t.Parallel()
	f := newLonelyFixture(t)
	f.exec(`create function {schema}.slow() returns trigger language plpgsql as 'begin perform pg_sleep(60); return null; end';
		create constraint trigger slow after insert on {schema}.orders deferrable initially deferred
		for each row execute function {schema}.slow()`)
	backend := make(chan uint32, 1)
	h := f.around(func(w http.ResponseWriter, r *http.Request) {
		tx, _ := pgtx.From(r.Context())
		f.orders(w, r)
		backend <- tx.Conn().PgConn().PID()
	})
	ended := make(chan int)
	go func() { ended <- post(h, "k", "body").Code }()
	pid := <-backend
	require.Eventually(t, func() bool {
		var killed bool
		err := f.pool.QueryRow(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity where pid = $1 and wait_event = 'PgSleep'`, pid).Scan(&killed)
		return err == nil && killed
	}, time.Minute, 10*time.Millisecond)
	assert.Equal(t, http.StatusServiceUnavailable, <-ended)
	f.exec(`drop trigger slow on {schema}.orders`)

	h = f.around(f.orders)
	again := post(h, "k", "body")
	for again.Code == http.StatusConflict { // the server frees the table a moment before the key
		again = post(h, "k", "body")
	}
	assert.Equal(t, "run 2", again.Body.String())
	f.holds(1, 1)
}

// The connection is gone in mid-handler: nothing has happened, and the request is free to be repeated.
func TestConnectionLostInHandler(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(func(w http.ResponseWriter, r *http.Request) {
		f.orders(w, r)
		if f.runs.Load() == 1 {
			tx, _ := pgtx.From(r.Context())
			_, err := f.pool.Exec(context.Background(), `select pg_terminate_backend($1)`, tx.Conn().PgConn().PID())
			assert.NoError(t, err)
		}
	})
	w := post(h, "k", "body")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code, w.Body)
	require.Eventually(t, func() bool { return post(h, "k", "body").Code == http.StatusCreated }, time.Minute, 10*time.Millisecond)
	f.holds(1, 1)
}

func TestDatabaseIsOutOfReach(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pool := devtest.PoolOn(t, "postgres://nobody@127.0.0.1:1/nothing")
	w := post(f.keysOn(pool, idempotencykey.Config{}).Middleware(http.HandlerFunc(f.orders)), "k", "body")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	problemOf(t, w, idempotencykey.Unavailable)
	assert.Zero(t, f.runs.Load())
}
