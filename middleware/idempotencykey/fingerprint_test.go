package idempotencykey_test

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

func upload(t *testing.T, boundary, file, content string) *http.Request {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	require.NoError(t, form.SetBoundary(boundary))
	require.NoError(t, form.WriteField("album", "7"))
	part, err := form.CreateFormFile("picture", file)
	require.NoError(t, err)
	_, err = part.Write([]byte(content))
	require.NoError(t, err)
	require.NoError(t, form.Close())
	r := request("k", body.String())
	r.Header.Set("Content-Type", form.FormDataContentType())
	return r
}

// A client that repeats an upload makes a new boundary, and got 422.
func TestRepeatedUpload(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(f.orders)
	require.Equal(t, http.StatusCreated, do(h, upload(t, "one", "a.png", "pixels")).Code)
	assert.True(t, replayed(do(h, upload(t, "two", "a.png", "pixels"))))
	for what, r := range map[string]*http.Request{
		"content": upload(t, "two", "a.png", "other pixels"),
		"name":    upload(t, "two", "b.png", "pixels"),
	} {
		assert.Equal(t, http.StatusUnprocessableEntity, do(h, r).Code, what)
	}
	torn := request("k", "--one\r\nContent-Disposition: form-data; name=\"album\"\r\n\r\n7")
	torn.Header.Set("Content-Type", "multipart/form-data; boundary=one")
	assert.Equal(t, http.StatusUnprocessableEntity, do(h, torn).Code, "what is no multipart body is compared as it is")
	f.holds(1, 1)
}

// Two tenants' hosts on one service: the second one's request got the first one's answer.
func TestKeyOfAnotherHost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(f.orders)
	at := func(host string) int {
		r := httptest.NewRequest(http.MethodPost, "http://"+host+"/orders", strings.NewReader("body"))
		r.RequestURI = "/orders"
		r.Header.Set("Idempotency-Key", "k")
		return do(h, r).Code
	}
	assert.Equal(t, []int{http.StatusCreated, http.StatusUnprocessableEntity, http.StatusCreated, http.StatusCreated},
		[]int{at("a.example.com"), at("b.example.com"), at("A.example.com"), at("a.example.com:8080")})
	f.holds(1, 1)
}

// A client that repeats its request may ask another instance of the service, at another address.
func TestKeyAtAnotherInstance(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(f.orders)
	for i, host := range []string{"127.0.0.1:8080", "10.0.0.7", "[::1]:8081", "[::1]"} {
		r := request("k", "body")
		r.Host, r.RequestURI = host, "/orders"
		assert.Equal(t, i > 0, replayed(do(h, r)), host)
	}
	f.holds(1, 1)
}

// The service says what makes two requests the same: here not the time at which the client has sent it.
func TestOwnFingerprint(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.keys(idempotencykey.Config{Fingerprint: func(_ *http.Request, body []byte) []byte {
		order, _, _ := bytes.Cut(body, []byte(" sent at "))
		return order
	}}).Middleware(http.HandlerFunc(f.orders))
	require.Equal(t, http.StatusCreated, post(h, "k", "order 7 sent at 10:00").Code)
	assert.True(t, replayed(post(h, "k", "order 7 sent at 10:01")))
	assert.Equal(t, http.StatusUnprocessableEntity, post(h, "k", "order 8 sent at 10:01").Code)
	elsewhere := request("k", "order 7 sent at 10:01")
	elsewhere.URL.Path = "/invoices"
	assert.Equal(t, http.StatusUnprocessableEntity, do(h, elsewhere).Code, "method, host, path and query always count")
	f.holds(1, 1)
}

// A session's cookie was kept in the clear for a day or two.
func TestCookiesAreNotStored(t *testing.T) {
	t.Parallel()
	for _, stored := range []bool{false, true} {
		t.Run(strconv.FormatBool(stored), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			h := f.keys(idempotencykey.Config{StoreCookies: stored}).Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				http.SetCookie(w, &http.Cookie{Name: "session", Value: "secret"})
				w.WriteHeader(http.StatusNoContent)
			}))
			assert.Equal(t, "session=secret", post(h, "k", "body").Header().Get("Set-Cookie"))
			again := post(h, "k", "body")
			assert.True(t, replayed(again))
			assert.Equal(t, map[bool]string{true: "session=secret"}[stored], again.Header().Get("Set-Cookie"))
			assert.Equal(t, map[bool]int{true: 1}[stored], f.count("idempotency_key where headers::text like '%' || encode('secret', 'hex') || '%'"))
		})
	}
}

// Which refusals are the last word is the service's choice: an expired token's is not.
func TestNotStored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg    idempotencykey.Config
		stored map[int]bool
	}{
		"default": {stored: map[int]bool{400: true, 401: false, 403: false, 404: true, 409: true, 422: true, 423: false, 429: false}},
		"others": {
			cfg:    idempotencykey.Config{NotStored: []int{http.StatusConflict}},
			stored: map[int]bool{401: true, 403: true, 409: false, 422: true, 423: true, 429: false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			for status, stored := range c.stored {
				h := f.keys(c.cfg).Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					f.place(r.Context(), "order")
					w.WriteHeader(status)
				}))
				key := fmt.Sprint("k", status)
				assert.Equal(t, status, post(h, key, "body").Code)
				assert.Equal(t, stored, replayed(post(h, key, "body")), status)
			}
			assert.Zero(t, f.count("orders"), "a refusal's writes are rolled back")
		})
	}
	f := newFixture(t)
	_, err := idempotencykey.New(f.pool, idempotencykey.Config{Service: "shop", Scope: idempotencykey.Shared, NotStored: []int{200}})
	require.ErrorContains(t, err, "Config.NotStored has 200: want statuses from 400 to 499")
}
