package effect_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/effect"
)

// Two services on one schema and one provider that used the same key swallowed each other's effect: the ledger called the
// second one done, and a provider that honours keys would have taken its charge for a repetition.
func TestNamespaceOfEffects(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	calls := map[string]int{} // by idempotency key
	charge := func(service string) string {
		var used string
		ctx := effect.With(t.Context(), f.open(f.pool, effect.Config{Service: service}))
		require.NoError(t, effect.Once(ctx, "charge:1", func(_ context.Context, idempotencyKey string) error {
			used = idempotencyKey
			calls[idempotencyKey]++
			return nil
		}))
		return used
	}
	labour, billing := charge("labour"), charge("billing")
	require.NotEmpty(t, labour)
	require.NotEmpty(t, billing, "each service has its effect")
	assert.NotEqual(t, labour, billing, "the provider can tell them apart")
	assert.Empty(t, charge("labour"), "the same service, again: done before")
	assert.Equal(t, map[string]int{labour: 1, billing: 1}, calls)
	done := map[string]string{}
	for _, e := range f.entries("done") {
		done[e.Key] = e.IdempotencyKey
	}
	assert.Equal(t, map[string]string{"labour/charge:1": labour, "billing/charge:1": billing}, done)
}

// What asks the provider gets the key as the call had it.
func TestNamespaceOfDoubts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var asked []effect.Intent
	once := func(service string) error {
		ctx := effect.With(t.Context(), f.open(f.pool, effect.Config{Service: service}))
		return effect.Once(ctx, "charge:1", func(context.Context, string) error { return errOops },
			effect.Reconcile(func(_ context.Context, i effect.Intent) (effect.Outcome, error) {
				asked = append(asked, i)
				return effect.WasDone(nil), nil
			}))
	}
	require.ErrorIs(t, once("labour"), effect.ErrInDoubt)
	require.ErrorIs(t, once("billing"), effect.ErrInDoubt, "another service's doubt says nothing of this one's effect")
	require.Eventually(t, func() bool { return once("labour") == nil }, time.Minute, time.Millisecond)
	require.Len(t, asked, 1)
	assert.Equal(t, "charge:1", asked[0].Key)
	assert.Len(t, f.entries("doubt"), 1)
}

func TestNamespaceIsRequired(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := effect.New(f.pool, effect.Config{})
	require.ErrorContains(t, err, `Config.Service is empty: want the service's name, which keeps its work apart`)
}
