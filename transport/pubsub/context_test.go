package pubsub

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type testKey struct{}

func TestMessageContextEnds(t *testing.T) {
	t.Parallel()
	parent := context.WithValue(t.Context(), testKey{}, "value")
	for name, asked := range map[string]bool{"somebody asked for Done": true, "nobody asked": false} {
		c := &messageContext{Context: parent}
		var done <-chan struct{}
		if asked {
			done = c.Done()
		}
		require.NoError(t, c.Err(), name)
		require.Equal(t, "value", c.Value(testKey{}), name)
		c.end()
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

func TestMessageContextFollowsItsParent(t *testing.T) {
	t.Parallel()
	parent, cancel := context.WithCancelCause(t.Context())
	asked, other := &messageContext{Context: parent}, &messageContext{Context: parent}
	done := asked.Done()
	cancel(errAbandon)
	<-done
	require.ErrorIs(t, context.Cause(asked), errAbandon)
	require.ErrorIs(t, other.Err(), context.Canceled)
	<-other.Done()
}

var errAbandon = context.DeadlineExceeded

// TestMessageContextHasChildren: package context attaches a child to what it knows, without a goroutine for each, which
// goleak would find here until the parent ends.
func TestMessageContextHasChildren(t *testing.T) {
	t.Parallel()
	c := &messageContext{Context: t.Context()}
	child, cancel := context.WithTimeout(c, time.Hour)
	defer cancel()
	grandchild, cancel := context.WithCancel(context.WithValue(child, testKey{}, 1))
	defer cancel()
	detached := context.WithoutCancel(c)
	c.end()
	<-grandchild.Done()
	require.ErrorIs(t, child.Err(), context.Canceled)
	require.NoError(t, detached.Err())
}
