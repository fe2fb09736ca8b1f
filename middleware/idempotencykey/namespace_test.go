package idempotencykey_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

// Two services on one schema answered each other's requests: a client that used one key for both got the answer of the first.
func TestNamespaceOfKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	at := func(service string) http.Handler {
		return f.keys(idempotencykey.Config{Service: service}).Middleware(http.HandlerFunc(f.orders))
	}
	shop, billing := post(at("shop"), "k", "{}"), post(at("billing"), "k", "{}")
	assert.Equal(t, "run 1", shop.Body.String())
	assert.Equal(t, "run 2", billing.Body.String(), "each service executes it")
	assert.Equal(t, "run 1", post(at("shop"), "k", "{}").Body.String(), "the same service, again: the stored answer")
	assert.Equal(t, "run 2", post(at("billing"), "k", "{}").Body.String())
	f.holds(2, 2)
}

func TestNamespaceIsRequired(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := idempotencykey.New(f.pool, idempotencykey.Config{Scope: idempotencykey.Shared})
	require.ErrorContains(t, err, `Config.Service is empty: want the service's name, which keeps its work apart`)
}
