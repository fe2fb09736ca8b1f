package claim_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
)

// A consumer's role can claim, and cannot forget what was processed.
func TestGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	exec := func(sql string) {
		_, err := f.pool.Exec(context.Background(), sql)
		require.NoError(t, err)
	}
	role := f.schema + "_c"
	exec(`create role ` + role)
	t.Cleanup(func() { exec(`drop owned by ` + role + `; drop role ` + role) })
	grants, err := claim.Grants(f.schema, claim.GrantRoles{Consumer: role})
	require.NoError(t, err)
	exec(grants)

	cfg := f.pool.Config()
	cfg.ConnConfig.RuntimeParams["role"] = role
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	key := claim.Key{Consumer: "labour/granted", EventID: outbox.NewID()}
	store := claim.NewPostgresStore(pool, claim.Schema(f.schema))
	require.NoError(t, store.Do(t.Context(), key, func(context.Context) error { return nil }))
	require.ErrorIs(t, store.Do(t.Context(), key, func(context.Context) error { return nil }), claim.ErrCompleted)
	c, err := claim.New(store, claim.Config{Service: "labour", Consumer: func(string) string { return "granted" }, Logger: silent})
	require.NoError(t, err)
	msg, _ := deliver(t, outbox.NewID())
	_, err = c.Middleware(failing(claim.Permanent(errOops)))(msg)
	require.NoError(t, err, "it keeps what fails")
	_, err = pool.Exec(t.Context(), `delete from `+f.schema+`.processed`)
	assert.ErrorContains(t, err, "permission denied")

	nobody, err := claim.Grants(f.schema, claim.GrantRoles{})
	require.NoError(t, err)
	assert.Empty(t, nobody)
	_, err = claim.Grants("no-good", claim.GrantRoles{Operator: role})
	require.ErrorContains(t, err, `Schema is "no-good"`)
}

// Also what marks and clears events in flight, and keeps what fails.
func TestRunNeedsNoMoreThanItsGrants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	role := f.schema + "_run"
	f.exec(`create role ` + role)
	t.Cleanup(func() {
		_, err := f.pool.Exec(context.Background(), `drop owned by `+role+`; drop role `+role)
		assert.NoError(t, err)
	})
	grants, err := claim.Grants(f.schema, claim.GrantRoles{Consumer: role})
	require.NoError(t, err)
	f.exec(grants)
	f.store = claim.NewPostgresStore(devtest.PoolOn(t, f.pool.Config().ConnString(), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["role"] = role
	}), claim.Schema(f.schema))
	f.noted(f.killed(), "3", 0)
	c := f.claim(claim.Config{Logger: silent})
	stop := f.running(c)
	msg, _ := deliver(t, "3")
	_, err = c.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(msg)
	require.NoError(t, err)
	assert.Zero(t, f.count("claim_start"))
	stop()
	assert.Equal(t, 1, f.count("journal"))
}
