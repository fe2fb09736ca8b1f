package outboxadmin_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/outbox/outboxadmin"
)

// topicBroker remembers what it got of each topic: payloads in order of arrival.
type topicBroker struct {
	mu  sync.Mutex
	got map[string][]string
	err map[string]error // what it says of a topic
}

func newTopicBroker() *topicBroker {
	return &topicBroker{got: map[string][]string{}, err: map[string]error{}}
}

func (b *topicBroker) Publish(topic string, msgs ...*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.err[topic]; err != nil {
		return err
	}
	for _, m := range msgs {
		b.got[topic] = append(b.got[topic], string(m.Payload))
	}
	return nil
}

func (b *topicBroker) Close() error { return nil }

func (b *topicBroker) of(topic string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got[topic])
}

// A pause reaches relays that run by notification, and relays that start from the table. The other topic goes on.
func TestPauseAndResumeTopic(t *testing.T) {
	t.Parallel()
	f, broker := newFixture(t), newTopicBroker()
	pause := func(p outboxadmin.Pause) {
		require.NoError(t, outboxadmin.PauseTopic(t.Context(), f.pool, f.schema, p))
	}
	slow := outbox.RelayConfig{LeaseTTL: time.Second, PollInterval: time.Hour} // only a notification is in time
	stop := f.relay(broker, slow)
	f.publishTo("paused", "k", "first")
	eventually(t, "the relay runs", func() bool { return len(broker.of("paused")) == 1 })
	pause(outboxadmin.Pause{Topic: "paused", By: "ada", Reason: "maintenance"})
	var want []string
	for n := 0; ; n++ { // what is written while the relay learns of it may still be published
		f.publishTo("paused", "k", fmt.Sprint(n))
		f.publishTo("other", "l", fmt.Sprint(n))
		want = append(want, fmt.Sprint(n))
		eventually(t, "the other topic goes on", func() bool { return len(broker.of("other")) == n+1 })
		if n > 20 && f.rows() > 0 {
			break
		}
		require.Less(t, n, 1000, "the pause does not reach the relay")
	}
	stop()
	sent := len(broker.of("paused"))
	pause(outboxadmin.Pause{Topic: "paused", By: "bob", Reason: "still"})

	f.relay(broker, slow)
	f.publishTo("other", "k", "behind") // waits behind an event of its key
	f.publishTo("other", "l", "free")
	eventually(t, "the next relay runs", func() bool { return slices.Contains(broker.of("other"), "free") })
	assert.Len(t, broker.of("paused"), sent)
	assert.NotContains(t, broker.of("other"), "behind")

	require.NoError(t, outboxadmin.ResumeTopic(t.Context(), f.pool, f.schema, "paused"))
	eventually(t, "all are published", func() bool { return f.rows() == 0 })
	assert.Equal(t, append([]string{"first"}, want...), broker.of("paused"))
	require.ErrorIs(t, outboxadmin.ResumeTopic(t.Context(), f.pool, f.schema, "paused"), outboxadmin.ErrNotPaused)
	require.ErrorContains(t, outboxadmin.PauseTopic(t.Context(), f.pool, f.schema, outboxadmin.Pause{}), "pause topic: the name is empty")
}
