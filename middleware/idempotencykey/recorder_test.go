package idempotencykey_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

// What cannot be stored is refused, whatever the handler thinks of it: its writes are rolled back.
func TestStreamsAreRefused(t *testing.T) {
	t.Parallel()
	for name, stream := range map[string]func(t *testing.T, w http.ResponseWriter){
		"events": func(t *testing.T, w http.ResponseWriter) {
			w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
			_, err := io.WriteString(w, "data: 1\n\n")
			assert.ErrorIs(t, err, http.ErrNotSupported, "so that a loop ends")
		},
		"another protocol": func(_ *testing.T, w http.ResponseWriter) { w.WriteHeader(http.StatusSwitchingProtocols) },
		"trailers": func(_ *testing.T, w http.ResponseWriter) {
			w.Header().Set("Trailer", "Sum")
			w.WriteHeader(http.StatusOK)
		},
		"undeclared trailers": func(_ *testing.T, w http.ResponseWriter) { w.Header().Set(http.TrailerPrefix+"Sum", "1") },
		"more than MaxResponse": func(t *testing.T, w http.ResponseWriter) {
			n, err := io.Copy(w, strings.NewReader(strings.Repeat("x", 1001)))
			assert.Zero(t, n)
			assert.ErrorContains(t, err, "larger than 1000 bytes")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			h := f.keys(idempotencykey.Config{MaxResponse: 1000}).Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				f.place(r.Context(), "order")
				stream(t, w)
			}))
			w := post(h, "k", "body")
			assert.Equal(t, http.StatusInternalServerError, w.Code)
			problemOf(t, w, idempotencykey.Failed)
			f.holds(0, 0)
		})
	}
}

func TestWriterCannotStream(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	server := httptest.NewServer(f.around(func(w http.ResponseWriter, r *http.Request) {
		_, flusher := w.(http.Flusher)
		_, hijacker := w.(http.Hijacker)
		assert.False(t, flusher || hijacker)
		control := http.NewResponseController(w)
		assert.ErrorIs(t, control.Flush(), http.ErrNotSupported)
		_, _, err := control.Hijack()
		assert.ErrorIs(t, err, http.ErrNotSupported)
		w.WriteHeader(http.StatusEarlyHints) // a client does without
		f.orders(w, r)
		w.WriteHeader(http.StatusTeapot) // too late, and
		w.Header().Set("X-Late", "1")    // so is this
	}))
	defer server.Close()
	for range 2 {
		res, err := send(t.Context(), t, server, "k", "body")
		require.NoError(t, err)
		assert.Equal(t, http.StatusCreated, res.status)
		assert.Equal(t, "run 1", res.body)
		assert.NotContains(t, res.header, "X-Late")
	}
	f.holds(1, 1)
}

// Headers that were set outside are sent anew with each response; what the handler made of them is repeated.
func TestHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	keys := f.keys(idempotencykey.Config{OmitHeaders: []string{"x-private"}, StoreCookies: true})
	inner := keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Del("X-Outer")
		w.Header().Set("Connection", "close")
		w.Header().Set("Content-Length", "99")
		w.Header().Set("X-Latin", "caf\xe9")
		w.Header()["X-Private"] = []string{"1"}
		w.Header()["Set-Cookie"] = []string{"a=1", "b=2"}
		io.WriteString(w, "answer")
	}))
	requests := 0
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		w.Header().Set("X-Request-Id", strconv.Itoa(requests))
		w.Header().Set("Vary", "Origin")
		w.Header().Set("X-Outer", "1")
		inner.ServeHTTP(w, r)
	})
	first, again := post(h, "k", "body").Result(), post(h, "k", "body").Result()
	common := http.Header{
		"Vary": {"Origin", "Accept"}, "Content-Length": {"6"}, "X-Latin": {"caf\xe9"}, "Set-Cookie": {"a=1", "b=2"},
		"X-Outer": nil,
	}
	with := func(h http.Header, add http.Header) http.Header {
		h = h.Clone()
		for k, v := range add {
			h[k] = v
		}
		return h
	}
	assert.Equal(t, with(common, http.Header{"X-Request-Id": {"1"}, "Connection": {"close"}, "X-Private": {"1"}}), first.Header)
	assert.Equal(t, with(common, http.Header{"X-Request-Id": {"2"}, "Idempotent-Replayed": {"true"}}), again.Header)
}

// What the handler adds to a header does not bring back the values that stood outside at the time: a session's cookie, say.
func TestHeadersThatAreAddedTo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	inner := f.keys(idempotencykey.Config{StoreCookies: true}).Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "cart", Value: "7"})
	}))
	requests := 0
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		http.SetCookie(w, &http.Cookie{Name: "session", Value: strconv.Itoa(requests)})
		inner.ServeHTTP(w, r)
	})
	assert.Equal(t, []string{"session=1", "cart=7"}, post(h, "k", "body").Header()["Set-Cookie"])
	again := post(h, "k", "body")
	assert.True(t, replayed(again))
	assert.Equal(t, []string{"session=2", "cart=7"}, again.Header()["Set-Cookie"])
}

func TestRequestBodies(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.keys(idempotencykey.Config{MaxBody: 10}).Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, int64(10), r.ContentLength)
		_, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 5))
		var tooLarge *http.MaxBytesError
		assert.ErrorAs(t, err, &tooLarge, "a handler may have a limit of its own")
		f.orders(w, r)
	}))
	server := httptest.NewServer(h)
	defer server.Close()
	for body, want := range map[string]int{strings.Repeat("x", 10): http.StatusCreated, strings.Repeat("x", 11): http.StatusRequestEntityTooLarge} {
		res, err := send(t.Context(), t, server, "k", body)
		require.NoError(t, err)
		assert.Equal(t, want, res.status)
	}
	broken := request("k2", "")
	broken.Body = io.NopCloser(io.MultiReader(strings.NewReader("half of "), iotest{}))
	w := do(h, broken)
	assert.Equal(t, http.StatusBadRequest, w.Code)
	problemOf(t, w, idempotencykey.BodyUnreadable)

	r := request("k3", "0123456789")
	r.Header.Set("Expect", "100-continue")
	assert.Equal(t, http.StatusCreated, do(h, r).Code)
	f.holds(2, 2)
}

type iotest struct{}

func (iotest) Read([]byte) (int, error) { return 0, errors.New("reset by peer") }

// The handler finds what a router outside of the middleware has found out.
func TestBehindAServeMux(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", f.around(func(w http.ResponseWriter, r *http.Request) {
		f.place(r.Context(), r.PathValue("id"))
		io.WriteString(w, r.Pattern+" "+r.PathValue("id"))
	}))
	for range 2 {
		r := request("k", "body")
		r.URL.Path = "/orders/7"
		assert.Equal(t, "POST /orders/{id} 7", do(mux, r).Body.String())
	}
	f.holds(1, 1)
}
