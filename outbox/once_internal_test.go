package outbox

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox/internal/progress"
	"github.com/millrace-go/millrace/transport"
)

// The progress of a shard with the largest MaxInFlight fits into a note, and that of the default is far below.
func TestProgressFitsIntoNote(t *testing.T) {
	t.Parallel()
	size := func(inFlight int) int { return len(progress.Encode(make([]progress.ID, progressLimit(inFlight)))) }
	require.LessOrEqual(t, size(maxTransactionalInFlight), transport.MaxNote)
	require.LessOrEqual(t, size(RelayConfig{}.WithDefaults().MaxInFlight), transport.MaxNote/10)
}
