package idempotencykey_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/internal/history"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
	"github.com/millrace-go/millrace/pgtx"
)

// recorded is a client, whose operations go to a history. Its requests say which execution they would be.
type recorded struct {
	*fixture
	h      *history.History
	client int
	server http.Handler
}

// execute is the operation: it writes which execution it is, and says so.
func (f *fixture) execute(w http.ResponseWriter, r *http.Request) {
	execution := r.Header.Get("Execution")
	tx, _ := pgtx.From(r.Context())
	if _, err := tx.Exec(r.Context(), `insert into `+f.schema+`.orders values ($1)`, execution); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = fmt.Fprint(w, execution)
}

// send reports whether the key has a response.
func (c recorded) send(ctx context.Context, key, body, execution string) bool {
	r := request(key, body).WithContext(ctx)
	r.Header.Set("Execution", execution)
	call := c.h.Call(c.client, key)
	w := do(c.server, r)
	switch status := w.Code; {
	case status == http.StatusOK && replayed(w):
		call.Return("replayed", body+"/"+w.Body.String())
	case status == http.StatusOK:
		call.Return("executed", body+"/"+w.Body.String())
	case status == http.StatusUnprocessableEntity:
		call.Return("reused", body+"/")
	case status == http.StatusConflict:
		call.Return("running", "")
	case strings.HasSuffix(problemType(w), "OutcomeUnknown"):
		call.Lose("unknown", body+"/"+execution)
	default:
		assert.GreaterOrEqual(c.t, status, 500)
		call.Return("nothing", "")
	}
	return w.Code == http.StatusOK
}

func problemType(w *httptest.ResponseRecorder) string {
	var p struct{ Type string }
	_ = json.Unmarshal(w.Body.Bytes(), &p) // the operation's own 500 has no body
	return p.Type
}

// read returns the executions of the key that took effect.
func (c recorded) read(ctx context.Context, key string) string {
	call := c.h.Call(c.client, key)
	rows, err := c.pool.Query(ctx, `select id from `+c.schema+`.orders where id like $1 || '.%'`, key)
	if !assert.NoError(c.t, err) {
		return ""
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if !assert.NoError(c.t, err) {
		return ""
	}
	seen := strings.Join(ids, " and ")
	call.Return("read", "/"+seen)
	return seen
}

// Four clients of as many processes send two requests with each key, lose connections and patience, and look for what took
// effect. There is an order in which they took turns.
func TestKeysHaveAHistory(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const clients, keys, requests = 4, 30, 4
	h := history.New()
	var all [clients]recorded
	for i := range all {
		pool := devtest.PoolOn(t, f.pool.Config().ConnString(), history.Named(f.schema))
		all[i] = recorded{f, h, i + 1, f.keysOn(pool, idempotencykey.Config{}).Middleware(http.HandlerFunc(f.execute))}
	}
	for range keys {
		key, executions := uuid.NewString(), atomic.Int64{}
		execution := func() string { return fmt.Sprintf("%s.%d", key, executions.Add(1)) }
		var group sync.WaitGroup
		for _, c := range all {
			faults := history.Attack(t, f.pool, f.schema, c.client)
			group.Go(func() {
				for range requests {
					body := "a"
					if faults.One(4) {
						body = "b"
					}
					ctx, cancel := faults.Before(t.Context())
					c.send(ctx, key, body, execution())
					cancel()
					c.read(t.Context(), key)
				}
			})
		}
		group.Wait()
		require.Eventually(t, func() bool {
			return all[0].send(t.Context(), key, "a", execution()) || all[0].send(t.Context(), key, "b", execution())
		}, time.Minute, 10*time.Millisecond)
		require.NotEmpty(t, all[1].read(t.Context(), key))
	}
	t.Logf("%d operations", len(h.Operations()))
	history.Check(t, h, history.Request)
}

// The same look at a middleware that holds nothing between its check and its record.
func TestHistoryShowsTwoExecutions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h, key := history.New(), uuid.NewString()
	var both, group sync.WaitGroup
	both.Add(2)
	checkThenAct := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := f.count("orders"); n > 0 {
			t.Errorf("%d orders before both have looked", n)
		}
		both.Done()
		both.Wait()
		_ = pgtx.Run(r.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
			f.execute(w, r.WithContext(ctx))
			return nil
		})
	})
	for client := range 2 {
		c := recorded{f, h, client + 1, checkThenAct}
		group.Go(func() { c.send(t.Context(), key, "a", fmt.Sprintf("%s.%d", key, client)) })
	}
	group.Wait()
	wrong, _ := history.Unordered(h.Operations(), history.Request)
	assert.Equal(t, []string{key}, wrong)
}
