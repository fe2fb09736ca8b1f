package idempotencykey_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

// reply is a response, read.
type reply struct {
	status int
	header http.Header
	body   string
}

// send posts to a server.
func send(ctx context.Context, t *testing.T, server *httptest.Server, key, body string) (reply, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/orders", strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Idempotency-Key", key)
	res, err := server.Client().Do(r)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, string(got)}, err
}

func TestTwoHundredRequestsWithOneKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var refused atomic.Int64
	release := make(chan struct{})
	server := httptest.NewServer(f.around(func(w http.ResponseWriter, r *http.Request) {
		<-release
		f.orders(w, r)
	}))
	defer server.Close()
	var fresh, stored atomic.Int64
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			for {
				res, err := send(t.Context(), t, server, "k", "body")
				if !assert.NoError(t, err) {
					return
				}
				if res.status == http.StatusConflict {
					assert.Equal(t, "1", res.header.Get("Retry-After"))
					if refused.Add(1) == 100 {
						close(release)
					}
					continue
				}
				assert.Equal(t, http.StatusCreated, res.status)
				assert.Equal(t, "run 1", res.body)
				if res.header.Get("Idempotent-Replayed") == "true" {
					stored.Add(1)
				} else {
					fresh.Add(1)
				}
				return
			}
		})
	}
	all.Wait()
	assert.Equal(t, []int64{1, 199, 1}, []int64{fresh.Load(), stored.Load(), f.runs.Load()})
	f.holds(1, 1)
}

// Requests meet in every state of one another: the lock is free again as soon as the answer is there to be found, so a look
// that is older than the lock would miss it.
func TestRequestsMeetAtTheCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(f.orders)
	const keys = 150
	for i := range keys {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for post(h, strconv.Itoa(i), "body").Code != http.StatusCreated {
				}
			})
		}
		all.Wait()
	}
	assert.Equal(t, int64(keys), f.runs.Load())
	f.holds(keys, keys)
}

// A rejection is stored in a second transaction; requests that come in between do no harm.
func TestRejectionsMeet(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(func(w http.ResponseWriter, r *http.Request) {
		f.place(r.Context(), "order")
		w.WriteHeader(http.StatusNotFound)
	})
	const keys = 100
	for i := range keys {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for post(h, strconv.Itoa(i), "body").Code != http.StatusNotFound {
				}
			})
		}
		all.Wait()
		require.True(t, replayed(post(h, strconv.Itoa(i), "body")))
	}
	f.holds(0, keys)
}

func TestClientHangsUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	begun, gone, finished := make(chan struct{}), make(chan struct{}), make(chan struct{})
	h := f.around(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-gone
		assert.NoError(t, r.Context().Err())
		f.orders(w, r)
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.runs.Load() == 0 {
			go func() {
				<-r.Context().Done() // the server has noticed
				close(gone)
			}()
			defer close(finished)
		}
		h.ServeHTTP(w, r)
	}))
	defer server.Close()
	ctx, hangUp := context.WithCancel(t.Context())
	go func() {
		<-begun
		hangUp()
	}()
	_, err := send(ctx, t, server, "k", "body")
	require.ErrorIs(t, err, context.Canceled)
	<-finished
	res, err := send(t.Context(), t, server, "k", "body")
	require.NoError(t, err)
	assert.Equal(t, http.StatusCreated, res.status)
	assert.Equal(t, "true", res.header.Get("Idempotent-Replayed"))
	assert.Equal(t, "run 1", res.body)
	f.holds(1, 1)
}

// What has not begun when the client leaves is not begun: nobody waits for it.
func TestClientLeavesBeforeItsTurn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	w := do(f.around(f.orders), request("k", "body").WithContext(ctx))
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	f.holds(0, 0)
}

func TestHandlerExceedsItsTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	slow := f.keys(idempotencykey.Config{Timeout: 2 * time.Second}).Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.orders(w, r)
		<-r.Context().Done()
	}))
	w := post(slow, "k", "body")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	problemOf(t, w, idempotencykey.Unavailable)
	assert.NotEmpty(t, w.Header().Get("Retry-After"))
	f.holds(0, 0)
	assert.Equal(t, "run 2", post(f.around(f.orders), "k", "body").Body.String())
}
