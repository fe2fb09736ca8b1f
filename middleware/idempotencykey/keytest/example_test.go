package keytest_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/millrace-go/millrace/middleware/idempotencykey/keytest"
)

// The test of a middleware of your own, with what it claims.
func ExampleRun() {
	newMiddleware := func(next http.Handler) http.Handler { return next } // for you: yours

	test := func(t *testing.T) { // for you: func TestIdempotencyKey(t *testing.T)
		keytest.Run(t, keytest.Server{
			Handler:      newMiddleware,
			Keys:         keytest.QuotedOrBare,
			RetryErrors:  true, // a 500 is not stored
			Authenticate: func(r *http.Request, account string) { r.Header.Set("Authorization", "Bearer "+account) },
		})
	}
	_ = test
}

// The test of a server in another process, in whatever language: it hands what its middleware lets through to the suite.
func ExampleServer() {
	test := func(t *testing.T) {
		operation, err := net.Listen("tcp", "127.0.0.1:9001") // where your server sends its requests
		if err != nil {
			t.Fatal(err)
		}
		keytest.Run(t, keytest.Server{URL: "http://127.0.0.1:8080", Operation: operation, Keys: keytest.Opaque, KeyOptional: true})
	}
	_ = test
}
