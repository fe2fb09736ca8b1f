package claim_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/framework/devstack/devtest"
	"github.com/millrace-go/millrace/middleware/claim"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

var errOops = errors.New("oops")

// holding begins a claim whose handler runs until end is called with the handler's result.
func (f *fixture) holding(key claim.Key) (end func(error) error) {
	claimed, finish, done := make(chan struct{}), make(chan error), make(chan error)
	go func() {
		done <- f.store.Do(context.Background(), key, func(ctx context.Context) error {
			if err := f.effect(ctx, key.EventID); err != nil {
				return err
			}
			close(claimed)
			return <-finish
		})
	}()
	<-claimed
	return func(err error) error {
		finish <- err
		return <-done
	}
}

func (f *fixture) claimNow(key claim.Key) error {
	return f.store.Do(context.Background(), key, func(ctx context.Context) error { return f.effect(ctx, key.EventID) })
}

// The three cases of the articles' own test suite.

func TestSecondConsumerIsRefusedWhileTheFirstHoldsTheClaim(t *testing.T) {
	t.Parallel()
	f, key := newFixture(t), claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()}
	end := f.holding(key)
	began := time.Now()
	require.ErrorIs(t, f.claimNow(key), claim.ErrContended)
	assert.Less(t, time.Since(began), 20*time.Second, "at once")
	require.NoError(t, end(nil))
	assert.Equal(t, map[string]int{key.EventID: 1}, f.effects())
}

func TestSecondConsumerIsToldCompletedAfterTheFirstCommitted(t *testing.T) {
	t.Parallel()
	f, key := newFixture(t), claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()}
	require.NoError(t, f.holding(key)(nil))
	require.ErrorIs(t, f.claimNow(key), claim.ErrCompleted)
	assert.Equal(t, map[string]int{key.EventID: 1}, f.effects())
}

func TestSecondConsumerClaimsAndFinishesAfterTheFirstRolledBack(t *testing.T) {
	t.Parallel()
	f, key := newFixture(t), claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()}
	require.ErrorIs(t, f.holding(key)(errOops), errOops)
	require.NoError(t, f.claimNow(key))
	require.ErrorIs(t, f.claimNow(key), claim.ErrCompleted)
	assert.Equal(t, map[string]int{key.EventID: 1}, f.effects())
}

// The holder's connection is gone in mid-handler, as when its process was killed: the claim never existed.
func TestClaimDiesWithItsConnection(t *testing.T) {
	t.Parallel()
	f, key := newFixture(t), claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()}
	err := f.store.Do(t.Context(), key, func(ctx context.Context) error {
		tx, _ := pgtx.From(ctx)
		require.NoError(t, f.effect(ctx, key.EventID))
		_, err := f.pool.Exec(context.Background(), `select pg_terminate_backend($1)`, tx.Conn().PgConn().PID())
		require.NoError(t, err)
		return nil
	})
	require.Error(t, err)
	require.Eventually(t, func() bool { return f.claimNow(key) == nil }, time.Minute, 10*time.Millisecond)
	assert.Equal(t, map[string]int{key.EventID: 1}, f.effects())
}

func TestEachConsumerHasItsOwnClaim(t *testing.T) {
	t.Parallel()
	f, id := newFixture(t), outbox.NewID()
	end := f.holding(claim.Key{Consumer: "labour/notify", EventID: id})
	require.NoError(t, f.claimNow(claim.Key{Consumer: "labour/bill", EventID: id}))
	require.NoError(t, end(nil))
	assert.Equal(t, map[string]int{id: 2}, f.effects())
}

// Advisory locks belong to the database: the same consumer and event in another schema, of another service, is another
// claim.
func TestEachSchemaHasItsOwnClaims(t *testing.T) {
	t.Parallel()
	one, other, key := newFixture(t), newFixture(t), claim.Key{Consumer: "labour/notify", EventID: outbox.NewID()}
	end := one.holding(key)
	require.NoError(t, other.claimNow(key))
	require.NoError(t, end(nil))
}

func TestAnyEventIDWillDo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, id := range []string{"1", "order-42/created", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "3f0c1b1e-8c52-4d6e-9f3a-6f1a2b3c4d5e", "Ünïcödé", outbox.NewID()} {
		require.NoError(t, f.claimNow(claim.Key{Consumer: "labour/notify", EventID: id}), id)
		require.ErrorIs(t, f.claimNow(claim.Key{Consumer: "labour/notify", EventID: id}), claim.ErrCompleted, id)
	}
}

// A restored database may give a consumer's number to another one while this process remembers it.
func TestConsumersNumbersMayChange(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.NoError(t, f.claimNow(claim.Key{Consumer: "a", EventID: "1"}))
	_, err := f.pool.Exec(t.Context(), `truncate `+f.schema+`.consumer, `+f.schema+`.processed restart identity`)
	require.NoError(t, err)
	other := claim.NewPostgresStore(f.pool, claim.Schema(f.schema))
	do := func(ctx context.Context) error { return f.effect(ctx, "2") }
	require.NoError(t, other.Do(t.Context(), claim.Key{Consumer: "b", EventID: "2"}, do))
	require.NoError(t, f.claimNow(claim.Key{Consumer: "a", EventID: "2"}))
	assert.Equal(t, map[string]int{"1": 1, "2": 2}, f.effects())
}

// What a role or a pool sets by default must not weaken a claim.
func TestHostileDefaults(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cfg := f.pool.Config()
	cfg.MaxConns = 1
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	defer pool.Close()
	store := claim.NewPostgresStore(pool, claim.Schema(f.schema))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, store.Do(ctx, claim.Key{Consumer: "labour/notify", EventID: "1"}, func(ctx context.Context) error {
		tx, _ := pgtx.From(ctx)
		var isolation, durable string
		var idle int
		require.NoError(t, tx.QueryRow(ctx, `select current_setting('transaction_isolation'), current_setting('synchronous_commit'),
			(select setting::int from pg_settings where name = 'idle_in_transaction_session_timeout')`).Scan(&isolation, &durable, &idle))
		assert.Equal(t, "read committed", isolation)
		assert.Equal(t, "on", durable)
		assert.InDelta(t, 65_000, idle, 5_000, "milliseconds: the deadline and some slack")
		return nil
	}))
	var after string
	require.NoError(t, pool.QueryRow(t.Context(), `show synchronous_commit`).Scan(&after))
	assert.Equal(t, "off", after, "the setting was the transaction's alone")
}

func TestSwallowedErrorCompletesNothing(t *testing.T) {
	t.Parallel()
	f, key := newFixture(t), claim.Key{Consumer: "labour/notify", EventID: "1"}
	err := f.store.Do(t.Context(), key, func(ctx context.Context) error {
		tx, _ := pgtx.From(ctx)
		_, _ = tx.Exec(ctx, `select 1/0`)
		return nil
	})
	require.ErrorIs(t, err, pgx.ErrTxCommitRollback)
	assert.Zero(t, f.count("processed"))
}

func TestStoreRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	require.ErrorContains(t, f.store.Do(t.Context(), claim.Key{Consumer: "a", EventID: "1"}, func(ctx context.Context) error {
		return f.store.Do(ctx, claim.Key{Consumer: "b", EventID: "1"}, nil)
	}), "is the middleware there twice?")

	bare := claim.NewPostgresStore(devtest.Pool(t), claim.Schema("nowhere_at_all"))
	require.ErrorContains(t, bare.Do(t.Context(), claim.Key{Consumer: "a", EventID: "1"}, nil), "run claim.Migrate first")

	_, err := claim.New(claim.NewPostgresStore(nil, claim.Schema("Big")), claim.Config{Service: "labour", HandlerTimeout: -1})
	for _, want := range []string{"pool is nil", `Schema is "Big"`, "Config.HandlerTimeout is -1ns"} {
		require.ErrorContains(t, err, want)
	}
	_, err = claim.New(nil, claim.Config{Service: "labour"})
	require.ErrorContains(t, err, "store is nil")
}
