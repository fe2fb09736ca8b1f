package claimtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/middleware/claim"
)

var errOops = errors.New("oops")

func newKey() claim.Key { return claim.Key{Consumer: "notify", EventID: newID()} }

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func secondIsRefused(t *testing.T, f Fixture) {
	k := newKey()
	end := f.hold(t, k)
	for range 3 { // a refusal changes nothing
		require.ErrorIs(t, f.Store.Do(t.Context(), k, never(t)), claim.ErrContended)
	}
	require.NoError(t, end(nil))
	require.ErrorIs(t, f.Store.Do(t.Context(), k, never(t)), claim.ErrCompleted)
	assert.Equal(t, map[string]int{k.EventID: 1}, f.Effects())
}

func secondIsTold(t *testing.T, f Fixture) {
	k := newKey()
	require.NoError(t, f.Store.Do(t.Context(), k, f.effect(k)))
	for range 3 {
		require.ErrorIs(t, f.Store.Do(t.Context(), k, never(t)), claim.ErrCompleted)
	}
	assert.Equal(t, map[string]int{k.EventID: 1}, f.Effects())
}

func secondRuns(t *testing.T, f Fixture) {
	k := newKey()
	end := f.hold(t, k)
	require.ErrorIs(t, end(errOops), errOops)
	want := 2
	if f.Transactional {
		require.Empty(t, f.Effects())
		want = 1
	}
	require.NoError(t, f.Store.Do(t.Context(), k, f.effect(k)))
	require.ErrorIs(t, f.Store.Do(t.Context(), k, never(t)), claim.ErrCompleted)
	assert.Equal(t, map[string]int{k.EventID: want}, f.Effects())
}

func panicReleases(t *testing.T, f Fixture) {
	k := newKey()
	assert.PanicsWithValue(t, "oops", func() {
		_ = f.Store.Do(t.Context(), k, func(context.Context) error { panic("oops") })
	})
	f.runsAgain(t, k)
}

// runsAgain waits until the claim is free: the store may notice the end of an interrupted claim a moment later.
func (f Fixture) runsAgain(t *testing.T, k claim.Key) {
	t.Helper()
	ran := 0
	require.Eventually(t, func() bool {
		err := f.Store.Do(context.WithoutCancel(t.Context()), k, func(context.Context) error { ran++; return nil })
		if !errors.Is(err, claim.ErrContended) {
			require.NoError(t, err)
		}
		return err == nil
	}, patience, poll)
	assert.Equal(t, 1, ran)
}

func endedContext(t *testing.T, f Fixture) {
	k := newKey()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, f.Store.Do(ctx, k, never(t)), context.Canceled)
	f.runsAgain(t, k)
}

func contextEnds(t *testing.T, f Fixture) {
	k := newKey()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var staged []error
	err := f.Store.Do(ctx, k, func(ctx context.Context) error {
		cancel(errOops)
		<-ctx.Done()
		staged = append(staged, context.Cause(ctx))
		return ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []error{errOops}, staged)
	f.runsAgain(t, k)
}

func keysAreApart(t *testing.T, f Fixture) {
	keys := []claim.Key{
		{Consumer: "a:b", EventID: "c"},
		{Consumer: "a", EventID: "b:c"},
		{Consumer: "a:", EventID: "b:c"},
		{Consumer: "notify", EventID: "1"},
		{Consumer: "Notify", EventID: "1"},
		{Consumer: "notify", EventID: "01"},
	}
	id := newID()
	for _, odd := range []string{
		" ", "1 ", "ü", "u\u0308", "a\nb", "{slot}", "{", "%s%d", `'";--`, "*", "?", `\`, "../1", uuid.NewString(), id, id + "x",
		"urn:uuid:" + id, "{" + id + "}", strings.Repeat("x", 5000), strings.Repeat("x", 5001),
	} {
		keys = append(keys, claim.Key{Consumer: "notify", EventID: odd})
	}
	// All at once, one inside the other if the store allows that in a handler.
	ends := make([]func(error) error, len(keys))
	for i, k := range keys {
		ends[i] = f.hold(t, k)
	}
	for i, k := range keys {
		require.ErrorIs(t, f.Store.Do(t.Context(), k, never(t)), claim.ErrContended, "%q", k)
		require.NoError(t, ends[i](nil), "%q", k)
		require.ErrorIs(t, f.Store.Do(t.Context(), k, never(t)), claim.ErrCompleted, "%q", k)
	}
}

func errorsPass(t *testing.T, f Fixture) {
	k := newKey()
	for _, own := range []error{errOops, claim.ErrCompleted, claim.ErrContended} {
		ran := false
		err := f.Store.Do(t.Context(), k, func(context.Context) error {
			ran = true
			return fmt.Errorf("of the handler: %w", own)
		})
		require.ErrorIs(t, err, own)
		require.ErrorContains(t, err, "of the handler: ")
		require.True(t, ran)
	}
}

func outputsLeave(t *testing.T, f Fixture) {
	k, want := newKey(), map[string]int{}
	stage := func(fails error, n int) error {
		return f.Store.Do(t.Context(), k, func(ctx context.Context) error {
			for range n {
				one, other := message.NewMessageWithContext(ctx, newID(), nil), message.NewMessageWithContext(ctx, newID(), nil)
				require.NoError(t, f.Store.Stage(ctx, "out", one, other))
				if fails == nil {
					want[one.UUID], want[other.UUID] = 1, 1
				}
			}
			return fails
		})
	}
	require.ErrorIs(t, stage(errOops, 1), errOops)
	assert.Panics(t, func() {
		_ = f.Store.Do(t.Context(), k, func(ctx context.Context) error {
			require.NoError(t, f.Store.Stage(ctx, "out", message.NewMessageWithContext(ctx, newID(), nil)))
			panic("oops")
		})
	})
	require.Empty(t, f.Outputs())
	require.Eventually(t, func() bool { return stage(nil, 2) == nil }, patience, poll)
	require.ErrorIs(t, stage(nil, 2), claim.ErrCompleted)
	assert.Len(t, want, 4)
	assert.Equal(t, want, f.Outputs())
}
