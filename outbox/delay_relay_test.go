package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgtx"
)

// A delayed event is published once it is due, not before, and tells the consumer when that was.
func TestRelayPublishesDelayedEvents(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newRecorder()
	f.run(f.newRelay(batchRecorder{broker}, outbox.RelayConfig{PollInterval: 200 * time.Millisecond}))
	f.publish("k", "at once")
	eventually(t, "the relay is up", func() bool { return broker.count() == 1 })
	began := time.Now()
	require.NoError(t, pgtx.Run(t.Context(), f.pool, func(ctx context.Context, _ pgx.Tx) error {
		msg := newMessage(ctx, "k", "later")
		outbox.SetDeliverAfter(msg, 1200*time.Millisecond)
		return f.publisher.Publish(topic, msg, newMessage(ctx, "k", "now"))
	}))
	eventually(t, "the others do not wait", func() bool { return broker.count() == 2 })
	eventually(t, "it comes", func() bool { return broker.count() == 3 })
	assert.GreaterOrEqual(t, time.Since(began), 1200*time.Millisecond)
	assert.Equal(t, []string{"at once", "now", "later"}, broker.of("k"))
	broker.mu.Lock()
	defer broker.mu.Unlock()
	due, err := time.Parse(time.RFC3339Nano, broker.last.Metadata.Get(outbox.DueMetadata))
	require.NoError(t, err)
	assert.WithinDuration(t, began.Add(1200*time.Millisecond), due, time.Minute)
}
