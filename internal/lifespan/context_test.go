package lifespan

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type testKey struct{}

func TestContextEnds(t *testing.T) {
	t.Parallel()
	parent := context.WithValue(t.Context(), testKey{}, "value")
	for name, asked := range map[string]bool{"somebody asked for Done": true, "nobody asked": false} {
		c := &Context{Context: parent}
		var done <-chan struct{}
		if asked {
			done = c.Done()
		}
		require.NoError(t, c.Err(), name)
		require.Equal(t, "value", c.Value(testKey{}), name)
		c.End()
		require.ErrorIs(t, context.Cause(c), context.Canceled, name)
		require.ErrorIs(t, c.Err(), context.Canceled, name)
		require.Equal(t, "value", c.Value(testKey{}), name)
		if asked {
			<-done
		}
		<-c.Done()
		require.NoError(t, parent.Err(), name)
	}
}

func TestContextFollowsItsParent(t *testing.T) {
	t.Parallel()
	parent, cancel := context.WithCancelCause(t.Context())
	asked, other := &Context{Context: parent}, &Context{Context: parent}
	done := asked.Done()
	cancel(errAbandon)
	<-done
	require.ErrorIs(t, context.Cause(asked), errAbandon)
	require.ErrorIs(t, other.Err(), context.Canceled)
	<-other.Done()
}

var errAbandon = context.DeadlineExceeded

// TestContextHasChildren: package context attaches a child to what it knows, without a goroutine for each, which
// goleak would find here until the parent ends.
func TestContextHasChildren(t *testing.T) {
	t.Parallel()
	c := &Context{Context: t.Context()}
	child, cancel := context.WithTimeout(c, time.Hour)
	defer cancel()
	grandchild, cancel := context.WithCancel(context.WithValue(child, testKey{}, 1))
	defer cancel()
	detached := context.WithoutCancel(c)
	c.End()
	<-grandchild.Done()
	require.ErrorIs(t, child.Err(), context.Canceled)
	require.NoError(t, detached.Err())
}
