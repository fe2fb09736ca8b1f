package quietport

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNoOutgoingConnectionTakesTheAddressOfAServerThatIsDown(t *testing.T) {
	t.Parallel()
	for range 100 {
		address, err := Address(t.Context())
		require.NoError(t, err)
		at, err := net.ResolveTCPAddr("tcp", address)
		require.NoError(t, err)
		assert.True(t, at.IP.IsLoopback())
		assert.Less(t, at.Port, 32_768, "the first ephemeral port of Linux")
		again, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		require.NoError(t, err, "the server returns to its address")
		require.NoError(t, again.Close())
	}
}
