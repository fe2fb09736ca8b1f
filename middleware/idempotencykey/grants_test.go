package idempotencykey_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/idempotencykey"
)

// A service's role can store answers and make days, and cannot forget or change what was stored.
func TestGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	role := f.schema + "_h"
	f.exec(`create role ` + role)
	t.Cleanup(func() { f.exec(`drop owned by ` + role + `; drop role ` + role) })
	grants, err := idempotencykey.Grants(f.schema, idempotencykey.GrantRoles{HTTP: role})
	require.NoError(t, err)
	f.exec(grants)
	f.exec(`drop table ` + f.schema + `.idempotency_key_` + time.Now().UTC().Format("20060102"))

	pool := devtest.PoolOn(t, f.pool.Config().ConnString(), func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["role"] = role })
	h := f.keysOn(pool, idempotencykey.Config{}).Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	assert.Equal(t, http.StatusNoContent, post(h, "k", "body").Code)
	assert.True(t, replayed(post(h, "k", "body")))
	for _, forbidden := range []string{"delete from {schema}.idempotency_key", "update {schema}.idempotency_key set status = 0", "truncate {schema}.idempotency_key"} {
		_, err := pool.Exec(t.Context(), sqlIn(forbidden, f.schema))
		assert.ErrorContains(t, err, "permission denied")
	}

	nobody, err := idempotencykey.Grants(f.schema, idempotencykey.GrantRoles{})
	require.NoError(t, err)
	assert.Empty(t, nobody)
	_, err = idempotencykey.Grants("no-good", idempotencykey.GrantRoles{HTTP: role})
	require.ErrorContains(t, err, `Schema is "no-good"`)
}
