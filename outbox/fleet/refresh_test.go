package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
)

// A database moves from server to server, and nothing is left of those that it was on: no metric, no goroutine, no line of the log.
func TestServersWithoutDatabasesEnd(t *testing.T) {
	t.Parallel()
	port := 0
	f, err := New(func(context.Context) ([]Database, error) {
		return []Database{{Name: "tenant", DSN: fmt.Sprintf("postgres://127.0.0.1:%d/tenant", port)}}, nil
	}, struct{ message.Publisher }{}, Config{Relay: outbox.RelayConfig{Logger: slog.New(slog.DiscardHandler)}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var moves [4]sync.WaitGroup // of the goroutines that a move starts
	var all []*server
	for i := range moves {
		port = i + 1
		if i > 0 {
			require.Eventually(t, func() bool {
				found := all[i-1].databases()
				status := f.Status()
				return len(found) == 1 && len(status) == 1 && status[0].Failures > 0
			}, time.Minute, 10*time.Millisecond, "nothing listens there")
		}
		require.Eventually(t, func() bool {
			return f.refresh(ctx, &moves[i]) == nil && len(f.all()) == 1
		}, time.Minute, 10*time.Millisecond)
		all = append(all, f.all()...)
	}
	for i, s := range all[:len(all)-1] {
		moves[i].Wait()
		assert.Empty(t, s.core.entries)
		assert.Empty(t, s.told)
		assert.Empty(t, s.relays)
	}
	assert.Equal(t, "127.0.0.1:4", f.all()[0].address)
	cancel()
	moves[3].Wait()
}
