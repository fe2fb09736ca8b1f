package kafka_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/transport/kafka"
)

func newest() kafka.Config {
	return kafka.Config{Consumer: kafka.ConsumerConfig{StartAt: kafka.Newest}}
}

// TestStartAtNewest: what was there before is not delivered, and what came later is, also to a member that comes after the
// first one has died with nothing done.
func TestStartAtNewest(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.put(0, "before")
	tr, messages := c.join(newest())
	c.put(0, "later 0")
	got := next(t, messages)
	require.Equal(t, "later 0", got.UUID)
	got.Nack()
	require.NoError(t, tr.Close())
	c.put(1, "later 1")
	_, messages = c.join(newest())
	want := []string{"later 0", "later 1"}
	for range want {
		msg := next(t, messages)
		require.Contains(t, want, msg.UUID)
		msg.Ack()
	}
	c.committed(0, 2)
	c.committed(1, 1)
}
