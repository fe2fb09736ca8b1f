package transport_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport"
)

// The in-memory transport refuses a pattern, because no event would ever be published to a topic with that name.
func TestMemoryRefusesAPattern(t *testing.T) {
	t.Parallel()
	tr, err := transport.NewMemory(transport.MemoryConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	s, err := tr.Subscriber(transport.SubscriberConfig{Consumer: "c"})
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), "^orders")
	require.ErrorIs(t, err, transport.ErrLimit)
	require.ErrorContains(t, err, "begins with ^")
}
