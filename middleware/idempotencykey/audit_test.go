package idempotencykey_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

// What operators forgot is in the audit, the last first, page by page.
func TestAudit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.around(f.orders)
	do(h, request("a", "1"))
	do(h, request("b", "2"))
	for _, key := range []string{"a", "b"} {
		stored, err := idempotencykey.Show(t.Context(), f.pool, f.schema, key)
		require.NoError(t, err)
		require.Len(t, stored, 1)
		_, err = idempotencykey.Forget(t.Context(), f.pool, f.schema, stored[0].ID, idempotencykey.By{Actor: "ada", Note: "of " + key})
		require.NoError(t, err)
	}
	found, err := idempotencykey.ListAudit(t.Context(), f.pool, f.schema, idempotencykey.AuditPage{})
	require.NoError(t, err)
	require.Len(t, found, 2)
	found[0].At = found[1].At
	assert.Equal(t, idempotencykey.Audit{ID: 2, At: found[0].At, Actor: "ada", Action: "forget", Service: "shop", Key: "b", Request: "POST /orders", Status: 201, Note: "of b"}, found[0])
	older, err := idempotencykey.ListAudit(t.Context(), f.pool, f.schema, idempotencykey.AuditPage{Before: 2, Limit: 1})
	require.NoError(t, err)
	assert.Equal(t, found[1:], older)

	e := idempotencykey.Entry{Service: "shop", Key: "c", Request: "POST /orders", Status: 201, Created: time.Now(), Body: []byte("secret")}
	require.NoError(t, idempotencykey.AuditReveal(t.Context(), f.pool, f.schema, e, idempotencykey.By{Actor: "grace"}))
	require.Error(t, idempotencykey.AuditReveal(t.Context(), f.pool, f.schema, e, idempotencykey.By{}))
	last, err := idempotencykey.ListAudit(t.Context(), f.pool, f.schema, idempotencykey.AuditPage{Limit: 1})
	require.NoError(t, err)
	last[0].At = time.Time{}
	assert.Equal(t, []idempotencykey.Audit{{ID: 3, Actor: "grace", Action: "reveal", Service: "shop", Key: "c", Request: "POST /orders", Status: 201}}, last)
}
